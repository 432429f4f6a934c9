from __future__ import annotations

from minimq_common.model import Permission
from minimq_nameserver.route_table import CONFLICT_EXPIRY_S, MAX_CONFLICTS, BrokerState, ConflictLog


def broker(address: str, name: str = "broker-a", run: int = 2) -> BrokerState:
    return BrokerState("default", name, 0, address, 1, Permission.READ_WRITE, {}, run=run)


HOLDER = broker("holder:1", run=1)


def test_a_conflict_is_over_some_time_after_it_was_seen_last() -> None:
    log = ConflictLog()
    log.note(broker("other:1"), HOLDER, "", 0.0)
    log.note(broker("other:1"), HOLDER, "", 100.0)
    assert log.recent(now=100.0 + CONFLICT_EXPIRY_S - 1)
    assert log.recent(now=100.0 + CONFLICT_EXPIRY_S) == []


def test_a_conflict_is_over_when_the_broker_has_a_place() -> None:
    log = ConflictLog()
    log.note(broker("other:1"), HOLDER, "", 0.0)
    log.note(broker("third:1"), HOLDER, "", 0.0)
    log.settle(HOLDER)
    assert len(log.recent(now=0.0)) == 2
    log.settle(broker("other:1", name="broker-b"))  # it was given a name of its own
    assert [conflict.address for conflict in log.recent(now=0.0)] == ["third:1"]


def test_only_the_latest_conflicts_are_kept() -> None:
    log = ConflictLog()
    for number in range(MAX_CONFLICTS + 5):
        log.note(broker("other:1"), HOLDER, "", number)  # seen again and again, so it stays
        log.note(broker(f"other:{number + 2}"), HOLDER, "", number)
    kept = [conflict.address for conflict in log.recent(now=0.0)]
    assert len(kept) == MAX_CONFLICTS
    assert kept[-2:] == ["other:1", f"other:{MAX_CONFLICTS + 6}"]
