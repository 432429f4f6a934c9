from __future__ import annotations

from dataclasses import replace

import pytest

from minimq_common.replicas.election import ReplicaLiveness, found, promote
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from support.reports import report

LEASE_S = 10.0
TIMEOUT_S = 11.0


def record() -> ReplicaSet:
    """Return a record in term 1 with replica 0 as the master, and 1 and 2 in sync."""
    first = found(report(), LEASE_S)
    assert first is not None
    return replace(first, in_sync=frozenset({0, 1, 2}))


SLAVE = report(1, last_term=1)


def winner(call: ReplicaLiveness, now: float, known: ReplicaSet | None = None) -> int | None:
    elected = call.elect(known or record(), now)
    return elected.master_id if elected else None


@pytest.mark.parametrize(
    ("resignation", "wait_s"),
    [(report(last_term=1, resigns=True), 0), (report(resigns=True), 11.0), (None, 11.0)],
    ids=["led", "had not begun", "silent"],
)
def test_the_next_master_waits_for_the_confirmations_of_one_that_may_be_serving(
    resignation: ReplicaReport | None, wait_s: float
) -> None:
    call = ReplicaLiveness(record(), now=0)
    known = replace(record(), in_sync=frozenset({0, 1}))
    if resignation is not None:
        call.hear(known, resignation, TIMEOUT_S - 1)
    call.hear(known, SLAVE, TIMEOUT_S)
    call.hear(known, replace(SLAVE, log_end=1), 2 * TIMEOUT_S - 1)
    elected = call.elect(known, 2 * TIMEOUT_S)
    assert elected is not None
    assert (elected.master_id, elected.wait_s) == (1, wait_s)


def test_the_next_run_of_a_master_that_had_begun_its_term_does_not_wait_and_another_does() -> None:
    for last_term, wait_s in ((1, 0), (0, 11.0)):
        known = replace(record(), in_sync=frozenset({0}))
        call = ReplicaLiveness(known, now=0)
        call.hear(known, report(run=7, last_term=last_term), TIMEOUT_S)
        elected = call.elect(known, TIMEOUT_S)
        assert elected is not None
        assert elected.wait_s == wait_s


def test_whoever_is_back_first_waits_for_the_others() -> None:
    call = ReplicaLiveness(record(), now=0)
    call.hear(record(), SLAVE, 100)
    assert winner(call, 100) is None
    call.hear(record(), report(0, run=7, last_term=1, log_end=50), 101)
    assert winner(call, 101) is None
    call.hear(record(), report(2, last_term=1), 102)  # now all are there
    assert winner(call, 102) == 0


def test_a_break_or_another_run_begins_the_wait_anew() -> None:
    call = ReplicaLiveness(record(), now=0)
    call.hear(record(), SLAVE, 100)
    call.hear(record(), replace(SLAVE, run=9), 105)
    assert winner(call, 111) is None
    call.hear(record(), SLAVE, 150)
    assert winner(call, 150) is None


def test_a_promotion_ends_with_the_lease_and_waits_for_nobody_else() -> None:
    call = ReplicaLiveness(record(), now=0)
    ending = promote(record(), 1)
    call.hear(ending, SLAVE, 5)
    call.hear(ending, report(), 5)  # renews nothing any more
    assert winner(call, 10.9, ending) is None
    assert winner(call, TIMEOUT_S, ending) == 1


def test_an_old_copy_of_the_master_is_not_elected() -> None:
    alone = replace(record(), in_sync=frozenset({0}))
    call = ReplicaLiveness(alone, now=0)
    call.hear(alone, report(last_term=1, log_end=90, common_end=90), 0)
    call.hear(alone, report(run=7, last_term=1, log_end=89), TIMEOUT_S)
    assert winner(call, TIMEOUT_S, alone) is None
    call.hear(alone, report(run=7, last_term=1, log_end=90), TIMEOUT_S)
    assert winner(call, TIMEOUT_S, alone) == 0


def test_an_old_copy_is_promoted_by_hand_if_that_is_wanted() -> None:
    call = ReplicaLiveness(record(), now=0)
    call.hear(record(), report(last_term=1, log_end=90, common_end=80), 0)
    clean, unclean = promote(record(), 1), promote(record(), 1, unclean=True)
    call.hear(clean, report(1, last_term=1, log_end=10), TIMEOUT_S)
    assert winner(call, TIMEOUT_S, clean) is None
    elected = call.elect(unclean, TIMEOUT_S)
    assert elected is not None
    assert (elected.master_id, elected.common_end) == (1, 10)


@pytest.mark.parametrize(
    "other",
    [
        {"run": 7},  # it is not the master any more
        {"last_term": 0},  # it has not begun its term yet: what it says is of an earlier one
        {"replica_id": 1},
    ],
)
def test_only_the_master_of_the_term_says_what_every_member_has(other: dict[str, int]) -> None:
    call = ReplicaLiveness(record(), now=0)
    call.hear(record(), report(**{"replica_id": 0, "last_term": 1, "common_end": 80, **other}), 0)
    for now in (1, 9, 15):
        call.hear(record(), report(1, last_term=1), now)
    assert winner(call, 2 * TIMEOUT_S) == 1


def test_what_every_member_has_is_recorded_with_the_next_change() -> None:
    known = replace(record(), sync=True)
    call = ReplicaLiveness(known, now=0)
    call.hear(known, report(last_term=1, log_end=90, common_end=80), 0)
    assert call.completed(known, known) is known
    changed = call.completed(replace(known, version=2), known)
    assert changed.common_end == 80
    anew = ReplicaLiveness(changed, now=0)  # after a start of the authority
    for now in (1, 9):
        anew.hear(changed, report(1, last_term=1, log_end=79), now)
        anew.hear(changed, report(2, last_term=1, log_end=80), now)
    elected = anew.elect(changed, TIMEOUT_S + 1)
    assert elected is not None
    assert (elected.master_id, elected.common_end) == (2, 80)


@pytest.mark.parametrize("sync", [False, True])
def test_whoever_joins_an_asynchronous_master_may_be_behind(*, sync: bool) -> None:
    known = replace(record(), sync=sync, in_sync=frozenset({0, 2}))
    call = ReplicaLiveness(known, now=0)
    call.hear(known, report(last_term=1, log_end=90, common_end=80), 0)
    joined = call.completed(replace(known, in_sync=frozenset({0, 1, 2}), version=2), known)
    assert joined.common_end == (80 if sync else 0)
    call.adopt(joined, 1)
    for now in (1, 9):
        call.hear(joined, report(1, last_term=1, log_end=70), now)
    assert winner(call, TIMEOUT_S + 1, joined) == (None if sync else 1)
