"""The right of a master to serve: its rules, and schedules of faults in virtual time."""

from __future__ import annotations

import math
import os

import pytest

from minimq_broker.replication.term_lease import Confirmations, TermLease
from support.cases import for_each
from support.chance import SEED
from support.lease_world import LeaseWorld, Violation

#: How many schedules; MINIMQ_TEST_SCHEDULES=100000 for a long run.
SCHEDULES = int(os.environ.get("MINIMQ_TEST_SCHEDULES", "100"))
#: The number of the first one, so that several runs add up to a longer one.
FIRST = int(os.environ.get("MINIMQ_TEST_FIRST_SCHEDULE", "0"))
CHUNK = 250
LASTS_S = 40.0


def test_a_confirmation_counts_from_when_its_frame_was_sent_and_all_must_confirm() -> None:
    lease = TermLease(3.0, until=10.0)
    assert lease.until({1, 2}) == 10.0
    assert [lease.ask(now) for now in (8.0, 9.0)] == [8.0, 9.0]
    lease.confirmed(1, 9.0)
    assert lease.until({1, 2}) == 10.0
    lease.confirmed(2, 8.0)
    assert lease.until({1, 2}) == 11.0
    assert lease.until({1}) == 12.0
    lease.renew(20.0)
    assert lease.until({1, 2}) == 20.0


def test_who_is_alone_needs_nobody_and_what_was_never_sent_is_no_confirmation() -> None:
    lease = TermLease(3.0, until=10.0)
    assert lease.until(()) == math.inf
    lease.ask(8.0)
    lease.confirmed(1, 8.1)
    assert lease.until({1}) == 10.0


def test_with_a_successor_confirmations_count_no_more() -> None:
    lease = TermLease(3.0, until=10.0)
    lease.ask(9.0)
    lease.confirmed(1, 9.0)
    lease.ending()
    assert lease.until({1}) == lease.until(()) == 10.0
    assert lease.ask(9.5) is None


def test_an_older_term_is_not_confirmed_and_what_was_confirmed_is_waited_for() -> None:
    confirmations = Confirmations(5.0)
    assert confirmations.leads_from(3.3) == 8.3  # it may have confirmed something before its start
    assert confirmations.leads_from(0.0) == -math.inf
    assert confirmations.confirm(4, 6.0)
    confirmations.accept(5)
    assert not confirmations.confirm(4, 7.0)
    assert confirmations.leads_from(3.0) == 9.0


@pytest.mark.rounds
@pytest.mark.timeout(3_600)
@for_each("first", range(FIRST, FIRST + SCHEDULES, CHUNK))
def test_two_masters_never_serve_at_one_time_and_nothing_acknowledged_is_lost(first: int) -> None:
    by_replicas = terms = 0
    for number in range(first, min(first + CHUNK, FIRST + SCHEDULES)):
        world = LeaseWorld(f"{SEED} {number}")
        world.run(LASTS_S)
        by_replicas += world.by_replicas
        terms += world.terms
    assert by_replicas  # else too little has happened to prove anything
    assert terms


@for_each(("broken", "first"), [("wait", 2), ("every", 16), ("doubt", 96), ("sent", 525)])
def test_the_schedules_find_a_rule_that_is_broken(broken: str, first: int) -> None:
    def play() -> None:
        for number in range(first, first + 1000):
            LeaseWorld(f"1 {number}", broken).run(LASTS_S)

    with pytest.raises(Violation):
        play()
