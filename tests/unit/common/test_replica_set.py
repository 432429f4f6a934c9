from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from minimq_common.errors import InvalidArgument, ReplicaSetChanged, StaleTerm, TermEnding
from minimq_common.replicas.election import elect, found, promote
from minimq_common.replicas.replica_set import (
    ReplicaReport,
    ReplicaSet,
    change_in_sync,
    check_not_ending,
    renew,
    renews_lease,
    repaired,
    what_was_repaired,
)
from support.reports import report


def record(**other: Any) -> ReplicaSet:
    """Return a record in term 5 with replica 0 as the master, and 1 in sync."""
    first = found(report(last_term=4), 3.0)
    assert first is not None
    return replace(first, **{"in_sync": frozenset({0, 1}), **other})


def told(by: int = 1, **other: Any) -> ReplicaReport:
    """Return the report of a replica that was told of a later record than the one there is."""
    return report(by, last_term=5, known=record(**{"version": 7, "in_sync": frozenset({0}), **other}))


def test_what_a_replica_was_told_holds_again_and_the_master_goes_on_if_the_record_knows_it() -> None:
    old = record(version=3)
    mended_record = repaired(old, told())
    assert mended_record == record(version=8, in_sync=frozenset({0}))
    assert repaired(mended_record, told()) is mended_record
    assert "replaced by an old copy: it was restored from replica 1" in what_was_repaired(mended_record, told())
    assert "its master continues" in what_was_repaired(mended_record, told())


@pytest.mark.parametrize("old", [None, record(term=4, version=3), record(master_run=77, version=3)])
def test_nobody_leads_before_an_election_when_it_is_not_known_who_got_a_lease(old: ReplicaSet | None) -> None:
    mended_record = repaired(old, told(0))
    assert mended_record is not None
    assert mended_record == record(version=8, in_sync=frozenset({0}), master_run=0)
    assert not renews_lease(mended_record, told(0))
    assert "there is no master for the time of a lease" in what_was_repaired(mended_record, told(0))
    elected = elect(mended_record, [told(0)])
    assert elected is not None
    assert (elected.term, elected.master_id, elected.master_run) == (6, 0, 1)


def test_of_two_records_with_one_number_the_one_holds_that_the_master_was_told() -> None:
    known = record(version=7)
    assert repaired(known, told(1)) is known
    assert repaired(known, told(0)) == record(version=8, in_sync=frozenset({0}))


def test_a_report_names_a_record_of_its_own_set_with_a_master_that_has_an_address() -> None:
    for wrong in ({"broker_name": "other"}, {"master_id": 2}):
        with pytest.raises(InvalidArgument):
            told(**wrong)


def test_a_new_address_is_a_change_and_an_old_one_is_none() -> None:
    known = record()
    assert renew(known, report()) is known
    moved = renew(known, report(1, address="127.0.0.1:1"))
    assert (moved.addresses[1], moved.version) == ("127.0.0.1:1", known.version + 1)


def test_the_lease_is_renewed_by_this_run_of_the_master_alone() -> None:
    assert renews_lease(record(), report())
    assert not renews_lease(record(), report(1))
    assert not renews_lease(record(), report(run=99))
    assert not renews_lease(record(), report(resigns=True))
    assert not renews_lease(record(successor=1), report())


def test_a_master_is_told_that_its_term_ends() -> None:
    check_not_ending(record(), report())
    check_not_ending(record(successor=1), report(1))
    with pytest.raises(TermEnding, match="replica 1 was promoted"):
        check_not_ending(record(successor=1), report())


def test_the_in_sync_set_is_changed_by_who_knows_the_record() -> None:
    known = record()
    changed = change_in_sync(known, known, [0, 1, 2])
    assert (set(changed.in_sync), changed.version) == ({0, 1, 2}, known.version + 1)
    assert change_in_sync(changed, known, [0, 1, 2]) is changed  # repeated, since the answer was lost
    with pytest.raises(ReplicaSetChanged):
        change_in_sync(changed, known, [0])


def test_a_set_that_is_that_already_is_recorded_anew_so_that_no_late_question_is_carried_out() -> None:
    known = record()
    settled = change_in_sync(known, known, known.in_sync)
    assert (settled.in_sync, settled.version) == (known.in_sync, known.version + 1)
    with pytest.raises(ReplicaSetChanged):
        change_in_sync(settled, known, [0, 1, 2])


def test_a_former_master_changes_nothing() -> None:
    with pytest.raises(StaleTerm, match=r"term 4: it is in term 5, with replica 0 as its master"):
        change_in_sync(record(), record(term=4), [0, 1, 2])


def test_the_set_stays_while_a_promotion_is_under_way() -> None:
    ending = record(successor=1)
    with pytest.raises(ReplicaSetChanged):
        change_in_sync(ending, ending, [0])


def test_a_promotion_is_repeatable_and_there_is_one_at_a_time() -> None:
    assert promote(record(), 0) == record()
    once = promote(record(), 1)
    assert promote(once, 1) is once
    for other in (0, 2):  # the master, too, is another one
        with pytest.raises(ReplicaSetChanged, match="replica 1"):
            promote(once, other, unclean=True)


def test_the_latest_term_wins_then_the_longest_log_then_the_smallest_id() -> None:
    def winner(*reports: ReplicaReport) -> int:
        elected = elect(record(in_sync=frozenset({0, 1, 2})), reports)
        assert elected is not None
        assert elected.term == max(each.last_term for each in reports) + 1
        assert elected.in_sync == {elected.master_id}
        return elected.master_id

    assert winner(report(0, last_term=5, log_end=900), report(1, last_term=6, log_end=100)) == 1
    assert winner(report(0, last_term=5, log_end=100), report(1, last_term=5, log_end=900)) == 1
    assert winner(report(2, last_term=5), report(1, last_term=5)) == 1


def test_a_term_that_the_log_of_the_set_knows_is_not_given_again() -> None:
    known, member = record(log_id="ours"), report(1, last_term=5, log_id="ours")
    for log_id, term in (("ours", 9), ("theirs", 6)):
        elected = elect(known, [member, report(2, last_term=8, log_id=log_id)])
        assert elected is not None
        assert (elected.master_id, elected.term) == (1, term)


def test_nobody_is_elected_who_is_not_in_sync_or_stops() -> None:
    assert elect(record(), [report(2, last_term=9)]) is None
    assert elect(record(), [report(1, last_term=5, resigns=True)]) is None
    assert elect(record(), []) is None


def test_a_member_that_has_lost_its_data_is_not_elected() -> None:
    assert elect(record(), [report(1, last_term=0)]) is None
    assert elect(record(), [report(0, last_term=0)]) is None


def test_a_master_that_ended_before_it_began_its_term_is_elected_again() -> None:
    elected = elect(replace(record(), in_sync=frozenset({0})), [report(0, run=7, last_term=4)])
    assert elected is not None
    assert (elected.term, elected.master_run) == (6, 7)


def test_a_master_that_was_elected_and_lost_its_data_before_others_joined_is_not_elected_again() -> None:
    elected = elect(record(), [report(1, last_term=5)])
    assert elected is not None
    assert elect(elected, [report(1, run=7, last_term=0)]) is None
    assert elect(elected, [report(1, run=7, last_term=5)]) is not None


def test_the_promoted_replica_wins_also_out_of_the_set() -> None:
    ending = promote(record(), 2, unclean=True)
    elected = elect(ending, [report(1, last_term=5, log_end=900), report(2)])
    assert elected is not None
    assert (elected.master_id, set(elected.in_sync), elected.successor) == (2, {2}, None)


def test_a_promoted_member_that_has_lost_its_data_is_elected_only_unclean() -> None:
    reports = [report(0, last_term=5), report(1, last_term=0)]
    clean, unclean = elect(promote(record(), 1), reports), elect(promote(record(), 1, unclean=True), reports)
    assert clean is not None
    assert unclean is not None
    assert (clean.master_id, unclean.master_id) == (0, 1)


def test_a_log_of_another_set_is_not_elected_whatever_it_knows() -> None:
    known = record(log_id="ours")
    assert elect(known, [report(1, last_term=9, log_end=900, log_id="theirs")]) is None
    assert elect(known, [report(1, last_term=9, log_end=900)]) is None
    elected = elect(known, [report(1, last_term=9, log_id="ours")])
    assert elected is not None
    assert (elected.master_id, elected.log_id) == (1, "ours")


@pytest.mark.parametrize("log_id", ["ours", ""])
def test_a_founder_that_has_lost_its_data_founds_no_second_log(log_id: str) -> None:
    founded = found(report(), 3.0)
    assert founded is not None
    known = renew(founded, report(last_term=1, log_id=log_id))
    elected = elect(known, [report(run=7)])
    assert (elected is None) == bool(log_id)  # without an identity it may have ended before it began its first term
    assert elect(known, [report(run=7, last_term=1, log_id=log_id)]) is not None


def test_an_emptied_member_of_a_larger_set_does_not_lead_though_the_master_began_with_nothing() -> None:
    assert elect(record(log_term=0), [report(1, last_term=0)]) is None
    assert elect(record(log_term=0), [report(1, last_term=4, log_end=900)]) is None
    assert elect(record(log_term=0), [report(1, last_term=5)]) is not None


def test_the_record_learns_from_its_master_which_log_it_is_of() -> None:
    known = record()
    assert renew(known, report(1, last_term=5, log_id="theirs")).log_id == ""
    assert renew(known, report(last_term=4, log_id="before")) is known
    told = renew(known, report(last_term=5, log_id="ours"))
    assert (told.log_id, told.version) == ("ours", known.version + 1)
    assert renew(told, report(last_term=5, log_id="ours")) is told
