from __future__ import annotations

from minimq_broker.commit.sync_watch import SyncWatch


def test_the_slowest_sync_of_a_minute_and_the_running_one_count() -> None:
    now = 0.0
    watch = SyncWatch(lambda: now)

    def sync(seconds: float) -> None:
        nonlocal now
        with watch.sync():
            now += seconds

    sync(0.5)
    assert (watch.running_s, watch.slow_s) == (0.0, 0.0)
    sync(4.0)
    sync(2.0)
    assert watch.slow_s == 4.0
    with watch.sync():
        now += 7.0
        assert (watch.running_s, watch.slow_s) == (7.0, 7.0)
    now += 61.0
    assert (watch.running_s, watch.slow_s) == (0.0, 0.0)
    sync(2.0)
    assert watch.slow_s == 2.0
