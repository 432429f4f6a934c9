from __future__ import annotations

from minimq.cli.local import Restarts


def test_waits_grow_while_a_server_ends_soon_and_are_bounded() -> None:
    restarts = Restarts(first_s=1, most_s=5, calm_s=60)
    now, waits = 1000.0, []
    for _ in range(5):
        waits.append(restarts.ended(now))
        now += waits[-1]
        restarts.started(now)
        now += 2
    assert waits == [1, 2, 4, 5, 5]


def test_a_server_that_has_run_for_long_is_started_soon_again() -> None:
    restarts = Restarts(first_s=1, most_s=5, calm_s=60)
    for _ in range(3):
        restarts.ended(0)
        restarts.started(0)
    assert restarts.ended(61) == 1
