"""The promises of every controller to its brokers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from minimq_common.errors import BrokerConflict, InvalidArgument, NotInSync, ReplicaSetChanged, StaleTerm, TermEnding
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet
from support.loop_thread import LoopThread
from support.reporter import LEASE_S, PATIENT_LEASE_S, Reporter, StartReporter
from support.waiting import wait_until


def record_of(reporter: Reporter) -> ReplicaSet:
    return wait_until(lambda: reporter.record, what="the reporter knows a record")  # type: ignore[return-value]


def wait_for_master(reporter: Reporter) -> None:
    try:
        wait_until(lambda: reporter.is_master, 40, what=f"replica {reporter.report.replica_id} leads")
    except AssertionError as late:
        raise AssertionError(f"{late}; it knows {reporter.record} and led {reporter.led}: {reporter.errors}") from None


def pair(controller: str, start: StartReporter) -> tuple[Reporter, Reporter]:
    """Start replica 0 as the master, and 1 in sync."""
    master = start(controller, 0)
    wait_for_master(master)
    slave = start(controller, 1)
    wait_until(lambda: record_of(slave).addresses.keys() == {0, 1})
    wait_until(lambda: record_of(master).addresses.keys() == {0, 1})
    joined = master.join(0, 1)
    wait_until(lambda: slave.record == joined)
    # So that the controller knows that it knows the term.
    wait_until(lambda: slave.answered and slave.answered.last_term == joined.term)
    return master, slave


def test_the_first_reporter_leads_and_the_others_learn_of_it(controller: str, start: StartReporter) -> None:
    master = start(controller, 0, sync=True, min_in_sync=2, last_term=4)
    wait_for_master(master)
    slave = start(controller, 1, founds=False)
    record = record_of(slave)
    assert (record.term, record.master_id, set(record.in_sync), record.sync, record.min_in_sync) == (5, 0, {0}, True, 2)
    assert record.master_address == master.report.address
    assert record.lease_s == LEASE_S


def test_without_a_record_the_longest_log_leads_and_not_the_first_one(
    patient_controller: str, start: StartReporter
) -> None:
    first = start(patient_controller, 1, PATIENT_LEASE_S, last_term=4, log_end=10)
    longest = start(patient_controller, 0, PATIENT_LEASE_S, last_term=4, log_end=90, log_id="ab")
    wait_until(lambda: first.reports and longest.reports, what="the controller knows that there are logs")
    empty = start(patient_controller, 2, PATIENT_LEASE_S)
    wait_for_master(longest)
    record = record_of(longest)
    assert (record.term, set(record.in_sync), record.log_id) == (5, {0}, "ab")
    for other in (first, empty):
        assert record_of(other).term == 5
        assert other.led == {}


def test_a_plain_slave_founds_nothing(controller: str, start: StartReporter, loop: LoopThread) -> None:
    slave = start(controller, 1, founds=False)
    assert loop.run(slave.controller.report(slave.report)) is None
    assert slave.record is None
    assert slave.errors == []


def test_an_answer_is_held_until_there_is_news(controller: str, start: StartReporter, loop: LoopThread) -> None:
    master = start(controller, 0)

    def hear_no_news() -> ReplicaReport | None:
        """Return what was said, unless there was news: a lease may end on a loaded machine."""
        said = replace(master.report, known=record_of(master))
        began = time.monotonic()
        if loop.run(master.controller.report(said, wait_s=0.3)) != said.known:
            return None
        assert time.monotonic() - began >= 0.3
        return said

    said = wait_until(hear_no_news)
    assert said is not None
    known = said.known
    assert known is not None
    start(controller, 1)
    news = loop.run(master.controller.report(said, wait_s=19))
    assert news is not None
    assert news.version > known.version


def test_a_silent_master_is_replaced_when_its_lease_is_over(controller: str, start: StartReporter) -> None:
    master, slave = pair(controller, start)
    master.fall_silent()
    assert not slave.led
    wait_for_master(slave)
    record = record_of(slave)
    assert (record.term, record.master_id, set(record.in_sync)) == (2, 1, {1})
    assert slave.led[2] > master.lease_until

    master.start()  # it was only cut off
    wait_until(lambda: record_of(master).master_id == 1)
    assert master.led.keys() == {1}
    assert not master.is_master


def test_nobody_is_elected_who_is_not_in_sync(controller: str, start: StartReporter) -> None:
    master = start(controller, 0)
    wait_for_master(master)
    slave = start(controller, 1, last_term=9, log_end=1 << 40)
    master.fall_silent()
    wait_until(lambda: time.monotonic() > master.lease_until + 1.5 * LEASE_S)
    assert record_of(slave).master_id == 0
    assert not slave.led
    master.restart()
    wait_for_master(master)
    assert master.led.keys() == {1, 2}


def test_a_master_that_resigns_is_replaced_at_once(controller: str, start: StartReporter) -> None:
    master, slave = pair(controller, start)
    answer = master.resign()
    assert answer is not None
    assert (answer.term, answer.master_id) == (2, 1)
    wait_for_master(slave)


def test_an_old_copy_of_a_member_is_not_elected(controller: str, start: StartReporter) -> None:
    master, slave = pair(controller, start)
    slave.fall_silent()
    slave.report = replace(slave.report, log_end=79)
    slave.restart()
    master.report = replace(master.report, log_end=90, common_end=80)
    wait_until(lambda: master.answered and master.answered.common_end)
    master.fall_silent()
    wait_until(lambda: time.monotonic() > master.lease_until + 1.5 * LEASE_S)
    assert not slave.led
    slave.report = replace(slave.report, log_end=80)
    wait_for_master(slave)
    assert record_of(slave).common_end == 80


def test_a_master_that_was_started_anew_leads_a_new_term(controller: str, start: StartReporter) -> None:
    master = start(controller, 0)
    wait_for_master(master)
    until = master.lease_until
    master.restart()
    wait_until(lambda: 2 in master.led)
    assert master.led[2] > until


def test_a_second_process_with_the_id_of_a_replica_is_rejected_while_the_first_one_reports(
    controller: str, start: StartReporter
) -> None:
    master, slave = pair(controller, start)
    other = start(controller, 1, run=77, address="127.0.0.1:1")
    wait_until(lambda: len(other.errors) > 3)
    assert {type(error) for error in other.errors} == {BrokerConflict}
    assert f"{slave.report.address}, but 127.0.0.1:1 says" in str(other.errors[0])
    assert other.answer is None
    since = time.monotonic()
    wait_until(lambda: slave.answered_at > since)
    assert slave.errors == master.errors == []
    slave.fall_silent()
    wait_until(lambda: other.record and other.record.addresses[1] == "127.0.0.1:1", 20)


def test_a_replica_that_was_started_anew_is_heard_at_once(controller: str, start: StartReporter) -> None:
    _, slave = pair(controller, start)
    slave.restart()
    wait_until(lambda: slave.answered and slave.answered.run == slave.report.run)
    elsewhere = start(controller, 1, run=78, address="127.0.0.1:2")
    wait_until(lambda: elsewhere.errors)
    slave.resign()  # it says that it has gone
    wait_until(lambda: elsewhere.record)
    assert slave.errors == []


def test_a_change_of_the_set_is_made_once_and_on_the_latest_record(
    controller: str, start: StartReporter, loop: LoopThread
) -> None:
    master, _ = pair(controller, start)
    known = record_of(master)
    changed = loop.run(master.controller.change_in_sync(known, {0}))
    assert (set(changed.in_sync), changed.version) == ({0}, known.version + 1)
    assert loop.run(master.controller.change_in_sync(known, {0})) == changed
    with pytest.raises(ReplicaSetChanged):
        loop.run(master.controller.change_in_sync(known, {0, 1}))
    with pytest.raises(StaleTerm):
        loop.run(master.controller.change_in_sync(replace(changed, term=changed.term + 1), {0, 1}))
    with pytest.raises(InvalidArgument):
        loop.run(master.controller.change_in_sync(changed, {1}))
    with pytest.raises(InvalidArgument):
        loop.run(master.controller.change_in_sync(replace(changed, broker_name="unknown"), {0}))


def test_a_replica_is_promoted_when_the_lease_of_the_master_is_over(controller: str, start: StartReporter) -> None:
    master, slave = pair(controller, start)
    promoted = slave.promote()
    assert (promoted.term, promoted.master_id, set(promoted.in_sync), promoted.successor) == (2, 1, {1}, None)
    assert time.monotonic() > master.lease_until
    wait_until(lambda: record_of(master).master_id == 1)
    wait_until(lambda: 2 in slave.led)
    assert slave.led[2] > master.lease_until
    assert master.led.keys() == {1}
    assert {type(error) for error in master.errors} <= {TermEnding}
    assert slave.promote() == record_of(slave)  # once more, since the answer was lost


def test_a_promotion_of_one_that_is_not_in_sync_has_to_be_wanted(controller: str, start: StartReporter) -> None:
    master = start(controller, 0)
    wait_for_master(master)
    slave = start(controller, 1)
    wait_until(lambda: record_of(slave).addresses.keys() == {0, 1})
    with pytest.raises(NotInSync, match=r"not in sync \(0\).*--unclean"):
        slave.promote()
    promoted = slave.promote(unclean=True)
    assert (promoted.master_id, set(promoted.in_sync)) == (1, {1})


def test_a_replica_that_is_not_there_is_not_promoted(controller: str, start: StartReporter) -> None:
    master = start(controller, 0)
    wait_for_master(master)
    with pytest.raises(InvalidArgument, match=r"replica 7 .* does not report"):
        master.promote(7, unclean=True)
