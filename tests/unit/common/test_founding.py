from __future__ import annotations

import math

from minimq_common.founding import Founding
from minimq_common.replica_set import ReplicaSet
from support.reports import report

LEASE_S = 10.0
PATIENCE_S = 11.0


def test_a_new_set_is_founded_at_once() -> None:
    founding = Founding(LEASE_S)
    founding.hear(report(1, founds=False), 0)
    assert founding.found(0) is None
    founding.hear(report(2), 1)
    founded = founding.found(1)
    assert isinstance(founded, ReplicaSet)
    assert (founded.master_id, founded.term) == (2, 1)


def test_the_longest_log_leads_whoever_comes_first() -> None:
    founding = Founding(LEASE_S)
    founding.hear(report(2, last_term=4, log_end=50), 0)
    assert founding.next_look_at(0) == PATIENCE_S
    for now in range(1, 11):
        founding.hear(report(0), now)
        founding.hear(report(1, last_term=4, log_end=90, log_id="ab"), now)
        founding.hear(report(2, last_term=4, log_end=50), now)
        founding.hear(report(3, last_term=3, log_end=990), now)
        assert founding.found(now) is None
    founded = founding.found(PATIENCE_S)
    assert founded is not None
    assert (founded.master_id, founded.master_run, founded.term, founded.log_id) == (1, 2, 5, "ab")
    assert set(founded.in_sync) == {1}
    assert founding.next_look_at(PATIENCE_S) == math.inf


def test_nothing_founds_a_set_while_a_log_reports() -> None:
    founding = Founding(LEASE_S)
    founding.hear(report(1, founds=False, last_term=4, log_end=90), 0)
    founding.hear(report(0), 1)
    assert founding.found(1) is None


def test_a_plain_slave_with_the_longest_log_leads_in_the_mode_of_one_that_founds() -> None:
    founding = Founding(LEASE_S)
    founding.hear(report(1, founds=False, last_term=4, log_end=90), 0)
    assert founding.found(PATIENCE_S - 1) is None
    founding.hear(report(1, founds=False, last_term=4, log_end=90), 5)
    founding.hear(report(0, last_term=4, log_end=50, sync=True, min_in_sync=2), 5)
    founded = founding.found(PATIENCE_S)
    assert founded is not None
    assert (founded.master_id, founded.sync, founded.min_in_sync) == (1, True, 2)


def test_who_is_silent_or_stops_does_not_lead() -> None:
    founding = Founding(LEASE_S)
    founding.hear(report(0, last_term=9), 0)
    founding.hear(report(1, last_term=8), 8)
    founding.hear(report(1, last_term=8, resigns=True), 9)
    founding.hear(report(2, last_term=7), 9)
    founded = founding.found(PATIENCE_S)
    assert founded is not None
    assert founded.master_id == 2
