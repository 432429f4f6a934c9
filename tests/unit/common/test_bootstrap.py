from __future__ import annotations

import math

from minimq_common.replicas.election import Bootstrap
from support.reports import report

LEASE_S = 10.0
TIMEOUT_S = 11.0


def test_the_longest_log_leads_whoever_comes_first() -> None:
    bootstrap = Bootstrap(LEASE_S)
    bootstrap.hear(report(2, last_term=4, log_end=50), 0)
    assert bootstrap.next_look_at(0) == TIMEOUT_S
    for now in range(1, 11):
        bootstrap.hear(report(0), now)
        bootstrap.hear(report(1, last_term=4, log_end=90, log_id="ab"), now)
        bootstrap.hear(report(2, last_term=4, log_end=50), now)
        bootstrap.hear(report(3, last_term=3, log_end=990), now)
        assert bootstrap.found(now) is None
    founded = bootstrap.found(TIMEOUT_S)
    assert founded is not None
    assert (founded.master_id, founded.master_run, founded.term, founded.log_id) == (1, 2, 5, "ab")
    assert set(founded.in_sync) == {1}
    assert bootstrap.next_look_at(TIMEOUT_S) == math.inf


def test_a_plain_slave_with_the_longest_log_leads_in_the_mode_of_one_that_founds() -> None:
    bootstrap = Bootstrap(LEASE_S)
    bootstrap.hear(report(1, founds=False, last_term=4, log_end=90), 0)
    assert bootstrap.found(TIMEOUT_S - 1) is None
    bootstrap.hear(report(1, founds=False, last_term=4, log_end=90), 5)
    bootstrap.hear(report(0, last_term=4, log_end=50, sync=True, min_in_sync=2), 5)
    founded = bootstrap.found(TIMEOUT_S)
    assert founded is not None
    assert (founded.master_id, founded.sync, founded.min_in_sync) == (1, True, 2)


def test_who_is_silent_or_stops_does_not_lead() -> None:
    bootstrap = Bootstrap(LEASE_S)
    bootstrap.hear(report(0, last_term=9), 0)
    bootstrap.hear(report(1, last_term=8), 8)
    bootstrap.hear(report(1, last_term=8, resigns=True), 9)
    bootstrap.hear(report(2, last_term=7), 9)
    founded = bootstrap.found(TIMEOUT_S)
    assert founded is not None
    assert founded.master_id == 2
