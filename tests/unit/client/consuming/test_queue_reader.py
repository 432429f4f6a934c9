"""The decisions of a queue reader, played in virtual time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from minimq.consuming.member_state import Grant, LeaseDeadline
from minimq.consuming.queue_decisions import Cancel, Commit, Decision, FetchOptions, Frame, LeaseOver, OffsetReset, Pull
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import EncodedRecords, ReceivedMessage
from minimq_common.errors import (
    CorruptBatch,
    Fenced,
    MinimqError,
    OffsetOutOfRange,
    QueueNotFound,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import MessageQueue
from support.batches import encode, one
from support.cases import for_each
from support.handing import has_any, take

QUEUE = MessageQueue("t", "broker-a", 0)
OPTIONS = FetchOptions(100, 1 << 20, long_poll_s=15.0, offset_reset="earliest", offset_refresh_s=3600.0)
RANGE = FetchOptions(1 << 40, 1 << 20)
NO_LEASE = Grant(0, 0, 0)
#: Epochs of two terms of a broker.
FIRST, SECOND = 1 << 32, 2 << 32


def stored(first: int, count: int, stored_ms: int = 0) -> EncodedRecords:
    data = encode([one(body=b"%d" % number) for number in range(first, first + count)])
    return EncodedRecords(first, stored_ms, 0, count, data)


def damaged(first: int, count: int) -> EncodedRecords:
    whole = stored(first, count)
    return EncodedRecords(first, 0, 0, count, whole.data[:-1] + bytes([whole.data[-1] ^ 1]))


def reader_from(
    offset: int = 0, *, options: FetchOptions = OPTIONS, end: int | None = None, term: int = 0, epoch: int = 0
) -> QueueReader:
    """Return a reader whose first pull is under way."""
    reader = QueueReader(QUEUE, Grant(epoch, offset, 7, address="a", term=term), options, end=end)
    assert kinds(reader.tick(0.0)) == [Pull]
    return reader


def fetched(first: int, *batches: EncodedRecords, max_offset: int | None = None) -> QueueReader:
    """Return a reader that has fetched batches and handed nothing out; its pull goes on."""
    reader = reader_from(first)
    end = batches[-1].base_offset + batches[-1].count if batches else first
    assert reader.frame_arrived(1, Frame(batches, max_offset=end if max_offset is None else max_offset), 0.0) == []
    return reader


def kinds(decisions: Sequence[Decision]) -> list[type]:
    return [type(decision) for decision in decisions]


def pull_of(decisions: Sequence[Decision]) -> Pull:
    [pull] = [decision for decision in decisions if isinstance(decision, Pull)]
    return pull


def offsets(reader: QueueReader, max_messages: int = 100) -> list[int]:
    return [message.queue_offset for message in take(reader, max_messages, 0.0)]


def rejected(error: MinimqError, **fields: int | bool) -> Frame:
    return Frame(is_last=True, failure=error, **fields)  # type: ignore[arg-type]


# ---- handing out ----------------------------------------------------------------------------------


def test_what_is_ahead_of_a_damaged_batch_comes_first_and_a_seek_leads_past_it() -> None:
    reader = fetched(0, stored(0, 3), damaged(3, 3), stored(6, 3))
    assert offsets(reader) == [0, 1, 2]
    assert reader.position == 3, "a commit must not pass over what is damaged"
    with pytest.raises(CorruptBatch, match="seek to 6"):
        take(reader, 9, 0.0)
    assert (reader.position, has_any(reader, 0.0), reader.tick(9.0)) == (3, False, [])
    assert kinds(reader.seek(6, 9.0)) == [Cancel, Pull]
    assert reader.error is None


def test_a_share_of_one_byte_takes_one_batch_at_a_time() -> None:
    reader = reader_from(options=FetchOptions(100, 1))
    reader.frame_arrived(1, Frame([stored(0, 3), stored(3, 3)], max_offset=6), 0.0)
    assert [offsets(reader), offsets(reader)] == [[0, 1, 2], [3, 4, 5]]


def test_a_batch_with_more_or_fewer_messages_than_the_index_says_is_damaged() -> None:
    reader = fetched(0, stored(0, 3), EncodedRecords(3, 0, 0, 3, stored(3, 2).data), stored(6, 3))
    assert len(offsets(reader)) == 3
    with pytest.raises(CorruptBatch, match=r"a batch of 2 records stands where 3 should.*seek to 6"):
        take(reader, 9, 0.0)


HOUR_MS = 3_600_000


@for_each(
    ("stored_ms", "now_ms", "delay_ms", "due_s"),
    [
        (10 * HOUR_MS, 10 * HOUR_MS, 2 * HOUR_MS, 7200.0),
        (10 * HOUR_MS, 11 * HOUR_MS, 2 * HOUR_MS, 3600.0),
        (10 * HOUR_MS, 12 * HOUR_MS, 2 * HOUR_MS, 0.0),
        (2_000_000 * HOUR_MS, 2_000_002 * HOUR_MS, 2 * HOUR_MS, 0.0),  # which is long after today
        (10 * HOUR_MS, 3 * HOUR_MS, 20, 0.02),  # the broker's clock was set back
    ],
)
def test_a_wait_is_counted_by_the_clock_of_the_broker(stored_ms: int, now_ms: int, delay_ms: int, due_s: float) -> None:
    reader = QueueReader(QUEUE, NO_LEASE, OPTIONS, delay_ms=delay_ms)
    reader.tick(0.0)
    reader.frame_arrived(1, Frame([stored(0, 3, stored_ms)], max_offset=3, now_ms=now_ms), 5.0)
    assert not due_s or not has_any(reader, 5.0 + due_s - 0.001)
    assert has_any(reader, 5.0 + due_s)


def test_a_message_shows_the_beginning_of_its_body() -> None:
    data = encode([one(body=b"caf\xc3\xa9"), one(body=b"x" * 5000)])
    short, long = take(fetched(0, EncodedRecords(0, 0, 0, 2, data)), 2, 0.0)
    assert repr(short) == "ReceivedMessage(t/broker-a/0, offset 0, tag None, b'caf\\xc3\\xa9', 5 bytes)"
    assert repr(long) == f"ReceivedMessage(t/broker-a/0, offset 1, tag None, b'{'x' * 60}'..., 5000 bytes)"


def test_a_large_batch_is_opened_in_parts_between_which_others_run() -> None:
    handed = fetched(0, stored(0, 3), stored(3, 5_000)).hand_over(10, 0.0)
    parts: list[int] = []

    def choose(messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        parts.append(len(messages))
        return [message for message in messages if message.queue_offset % 2]

    pauses: list[int] = []
    odd_ones: Any = SimpleNamespace(apply=choose, reads_texts=False)
    for _ in handed.opening(odd_ones):
        assert handed.messages is None
        pauses.append(sum(parts))
    assert handed.messages is not None
    assert [message.queue_offset for message in handed.messages] == [*range(1, 5_003, 2)]
    assert handed.dropped == 5_003 - len(handed.messages)
    assert sum(parts) == 5_003
    assert max(after - before for before, after in pairwise([0, *pauses, 5_003])) < 500


# ---- pulls ----------------------------------------------------------------------------------------


def test_the_next_pull_waits_until_more_than_half_was_handed_out() -> None:
    reader = reader_from()
    assert reader.frame_arrived(1, Frame([stored(0, 70), stored(70, 10)], max_offset=80, is_last=True), 0.0) == []
    offsets(reader, 10)
    assert pull_of(reader.tick(0.0)).max_messages == 90
    assert reader.tick(0.0) == []


def test_readers_divide_what_their_consumer_may_buffer() -> None:
    options = FetchOptions(100, 1000, readers=lambda: 4)
    pull = pull_of(QueueReader(QUEUE, NO_LEASE, options).tick(0.0))
    assert (pull.max_messages, pull.max_bytes) == (25, 250)
    many = FetchOptions(100, 1000, readers=lambda: 2000)
    pull = pull_of(QueueReader(QUEUE, NO_LEASE, many).tick(0.0))
    assert (pull.max_messages, pull.max_bytes) == (1, 1)  # a broker sends one batch nevertheless


def test_messages_that_the_user_has_not_finished_count_as_buffered() -> None:
    batch = stored(0, 40)
    size = len(batch.data)
    reader = reader_from(options=FetchOptions(1000, size))
    reader.frame_arrived(1, Frame([batch, stored(40, 40)], max_offset=80, is_last=True), 0.0)
    take(reader, 64, 0.0)
    assert offsets(reader, 10) == [*range(40, 50)]
    assert reader.tick(0.0) == []  # the second batch alone takes all
    assert offsets(reader, 30) == [*range(50, 80)]
    assert pull_of(reader.tick(0.0)).max_bytes == size


def test_a_failed_pull_is_tried_again_and_one_that_worked_makes_the_next_wait_short() -> None:
    reader = reader_from(options=RANGE, end=10)
    now = 0.0
    for number, wait_s in enumerate((0.05, 0.1, 0.2, 0.4, 0.5, 0.5, 0.5), 1):
        assert reader.pull_failed(number, Unavailable("gone"), now) == []
        assert reader.wake_at == pytest.approx(now + wait_s)
        assert reader.tick(reader.wake_at - 0.01) == []
        now = reader.wake_at
        assert kinds(reader.tick(now)) == [Pull]
        assert reader.wake_at == math.inf
    reader.frame_arrived(8, Frame([stored(0, 3)], max_offset=10), now)
    reader.pull_failed(8, None, now)
    assert reader.wake_at == pytest.approx(now + 0.05)
    assert isinstance(reader.failure, Unavailable)


def test_an_error_that_lasts_is_told_once_and_a_seek_ends_it() -> None:
    reader = reader_from()
    assert reader.frame_arrived(1, rejected(QueueNotFound("no such queue")), 0.0) == []
    assert isinstance(reader.take_error(), QueueNotFound)
    assert (reader.take_error(), reader.tick(99.0)) == (None, [])
    assert kinds(reader.seek(0, 0.0)) == [Pull]


# ---- slaves ---------------------------------------------------------------------------------------


def test_what_a_slave_does_not_have_is_waited_for() -> None:
    reader = reader_from()
    assert reader.frame_arrived(1, rejected(OffsetOutOfRange("not here"), from_slave=True, max_offset=2), 0.0) == []
    assert (reader.error, reader.wake_at) == (None, 0.05)


# ---- leases ---------------------------------------------------------------------------------------


@for_each(
    ("epoch", "offset", "topic_id", "goes_on"),
    [
        (FIRST + 1, 10, 7, True),
        (FIRST + 1, 3, 7, True),  # it has committed less than it has handed out
        (SECOND + 1, 10, 7, True),  # its broker serves groups anew
        (SECOND + 1, 3, 7, True),
        (SECOND + 1, 11, 7, False),  # somebody else was further meanwhile
        (FIRST + 2, 10, 7, False),  # its broker had another owner for it, or was told to give it another place
        (SECOND + 1, 10, 8, False),  # the topic was made anew
    ],
)
def test_a_queue_goes_on_unless_somebody_else_may_have_read_it(
    epoch: int, offset: int, topic_id: int, goes_on: bool
) -> None:
    reader = reader_from(10, epoch=FIRST + 1)
    decisions = reader.renewed(Grant(epoch, offset, topic_id, address="b"), 0.0)
    assert reader.position == 10
    if goes_on:
        assert decisions is not None
        assert decisions[0] == Cancel(1)
        assert pull_of(decisions).epoch == reader.lease.epoch == epoch
    else:
        assert decisions is None
        assert reader.is_pulling(1)


@pytest.mark.parametrize(("committed", "delivery_count", "goes_on"), [(10, 0, True), (11, 0, False), (10, 1, False)])
def test_who_was_offline_goes_on_unless_somebody_else_got_anywhere(
    committed: int, delivery_count: int, goes_on: bool
) -> None:
    reader = reader_from(10, epoch=FIRST + 1)
    trust = LeaseDeadline()
    reader.renewed(reader.lease._replace(trust=trust), 3.0)
    trust.is_broken = True
    lease = Grant(FIRST + 2, committed, 7, delivery_count=delivery_count)
    assert (reader.renewed(lease, 5.0) is not None) is goes_on


def test_under_a_renewed_lease_a_failed_pull_is_tried_again_at_once() -> None:
    reader = reader_from(10, epoch=FIRST)
    reader.pull_failed(1, Unavailable("gone"), 0.0)
    assert kinds(reader.renewed(Grant(SECOND, 10, 7), 0.1) or ()) == [Pull]


def test_another_broker_is_asked_at_once_though_enough_is_fetched() -> None:
    reader = reader_from(10, options=FetchOptions(5, 1), epoch=FIRST)
    reader.frame_arrived(1, Frame([stored(10, 5)], max_offset=15, is_last=True), 0.0)
    assert not reader.is_pulling(1)
    pull = pull_of(reader.renewed(Grant(SECOND, 10, 7), 0.0) or ())
    assert (pull.max_messages, pull.max_bytes) == (1, 1)
    assert reader.frame_arrived(2, Frame(max_offset=15, term=2, is_last=True), 0.0) == []


def test_nothing_is_handed_out_while_the_lease_is_in_doubt() -> None:
    reader = reader_from(epoch=FIRST)
    reader.frame_arrived(1, Frame([stored(0, 3)], max_offset=3), 0.0)
    trust = LeaseDeadline(5.1)
    assert reader.renewed(Grant(FIRST, 0, 7, trust=trust), 4.0) is not None
    assert (has_any(reader, 5.0), has_any(reader, 5.1)) == (True, False)
    trust.until = 9.0
    assert has_any(reader, 5.1)
    assert reader.renewed(Grant(FIRST, 0, 7), 9.0) is not None
    assert has_any(reader, 9.0)


def test_a_lease_that_the_broker_does_not_know_is_the_affair_of_the_member() -> None:
    reader = reader_from(epoch=FIRST)
    fenced = Fenced("not yours")
    assert reader.frame_arrived(1, rejected(fenced), 0.0) == [LeaseOver(FIRST, fenced)]
    assert (reader.take_error(), reader.tick(99.0)) == (None, [])
    assert kinds(reader.renewed(Grant(SECOND, 0, 7), 0.0) or ()) == [Pull]
    assert reader.error is None


# ---- what is not stored ---------------------------------------------------------------------------


def out_of_range(first: int, end: int, term: int = 0) -> Frame:
    return rejected(OffsetOutOfRange("not stored"), min_offset=first, max_offset=end, term=term)


@pytest.mark.parametrize(("rule", "offset"), [("earliest", 50), ("latest", 90)])
def test_what_was_fetched_comes_first_and_what_was_deleted_is_passed_over(rule: str, offset: int) -> None:
    options = FetchOptions(100, 1 << 20, offset_reset=rule)  # type: ignore[arg-type]
    reader = reader_from(10, options=options)
    reader.frame_arrived(1, Frame([stored(10, 5)], max_offset=15), 0.0)
    reset, pull = reader.frame_arrived(1, out_of_range(50, 90), 0.0)
    assert reset == OffsetReset(QUEUE, 15, offset, 50, 90)
    assert isinstance(pull, Pull)
    assert (reader.position, pull.offset) == (10, offset)
    assert offsets(reader) == [10, 11, 12, 13, 14]
    assert reader.position == offset
    assert not commit_of(reader, offset).sought


def test_with_the_rule_error_the_user_is_told() -> None:
    reader = reader_from(10, options=FetchOptions(100, 1 << 20))
    assert reader.frame_arrived(1, out_of_range(50, 90), 0.0) == []
    assert isinstance(reader.take_error(), OffsetOutOfRange)


def test_of_a_queue_that_is_empty_all_is_missed() -> None:
    reader = reader_from(3)
    reset, _ = reader.frame_arrived(1, out_of_range(8, 8), 0.0)
    assert isinstance(reset, OffsetReset)
    assert reset == OffsetReset(QUEUE, 3, 8, 8, 8)
    assert (reset.deleted, reset.missed, reset.is_back, reader.position) == (5, 5, False, 8)


def test_beyond_the_end_it_goes_back_there_and_so_may_the_commit() -> None:
    reader = fetched(10, stored(10, 5))
    offsets(reader)
    reset, pull = reader.frame_arrived(1, out_of_range(0, 12), 0.0)
    assert isinstance(reset, OffsetReset)
    assert isinstance(pull, Pull)
    assert reset == OffsetReset(QUEUE, 15, 12, 0, 12)
    assert (reset.deleted, reset.missed, reset.is_back) == (0, 0, True)
    assert (reader.position, pull.offset, commit_of(reader, 12).sought) == (12, 12, True)


def test_a_seek_beyond_the_end_is_no_loss_of_messages() -> None:
    reader = reader_from(0)
    reader.seek(1_000_000, 0.0)
    reset, pull = reader.frame_arrived(2, out_of_range(0, 1_000), 0.0)
    assert reset == OffsetReset(QUEUE, 1_000_000, 1_000, 0, 1_000, sought=True)
    assert isinstance(pull, Pull)
    reader.frame_arrived(pull.number, Frame([stored(1_000, 5)], max_offset=1_005), 0.0)
    offsets(reader)
    reset, _ = reader.frame_arrived(pull.number, out_of_range(0, 1_002), 0.0)
    assert reset == OffsetReset(QUEUE, 1_005, 1_002, 0, 1_002)


def test_what_was_fetched_and_is_no_more_is_fetched_again() -> None:
    """Only what was fetched ahead was beyond the end: the reader has missed nothing."""
    reader = fetched(10, stored(10, 5))
    offsets(reader, 2)
    moves = reader.moves
    [pull] = reader.frame_arrived(1, out_of_range(0, 13), 0.0)
    assert isinstance(pull, Pull)
    assert (reader.position, pull.offset, commit_of(reader, 12).sought) == (12, 12, False)
    assert not has_any(reader, 0.0)
    assert reader.moves > moves


def test_of_which_log_an_offset_is_goes_along_until_the_reader_is_moved() -> None:
    reader = fetched(10, stored(10, 5))
    offsets(reader, 1)
    reader.frame_arrived(1, Frame([stored(15, 5)], max_offset=20, term=3), 0.0)
    assert reader.term_taken == 0
    offsets(reader, 4)
    offsets(reader, 2)
    assert reader.term_taken == 3
    pull = pull_of(reader.frame_arrived(1, out_of_range(0, 12, term=4), 0.0))  # what was handed out is of that log
    assert (reader.position, pull.term, reader.term_taken) == (12, 4, 3)
    pull = pull_of(reader.seek(19, 0.0))  # by the user, who knows why
    assert (pull.term, reader.term_taken) == (0, 0)


# ---- commits --------------------------------------------------------------------------------------


def commit_of(reader: QueueReader, offset: int, now: float = 0.0, *, automatic: bool = False) -> Commit:
    commit = reader.commit_due(offset, reader.term_taken, now, automatic=automatic)
    assert commit is not None
    return commit


def test_an_automatic_commit_leaves_out_what_was_recorded_lately() -> None:
    reader = fetched(0, stored(0, 9))
    offsets(reader, 6)
    reader.commit_answered(commit_of(reader, 5, automatic=True), 0.0, None)
    assert reader.commit_due(5, 0, 3599.0, automatic=True) is None
    commit_of(reader, 5)
    commit_of(reader, 6, automatic=True)
    commit_of(reader, 5, 3600.0, automatic=True)


def test_what_was_not_recorded_is_due_again_with_the_seek_before_it() -> None:
    reader = fetched(0, stored(0, 9))
    reader.commit_answered(commit_of(reader, 5), 0.0, None)
    reader.seek(2, 0.0)
    commit = commit_of(reader, 5, automatic=False)
    assert commit.sought
    reader.seek(1, 0.0)  # meanwhile
    reader.commit_answered(commit, 0.0, Unavailable("offline"))
    assert commit_of(reader, 1, automatic=True).sought
    assert not commit_of(reader, 1, automatic=True).sought


def test_it_knows_whether_something_is_not_committed() -> None:
    reader = reader_from(epoch=FIRST)
    reader.frame_arrived(1, Frame([stored(0, 9)], max_offset=9), 0.0)
    assert not reader.is_uncommitted
    offsets(reader, 5)
    assert reader.is_uncommitted
    reader.commit_answered(commit_of(reader, 4), 0.0, None)
    assert reader.is_uncommitted
    reader.commit_answered(commit_of(reader, 5), 0.0, None)
    assert not reader.is_uncommitted


def test_of_a_topic_that_was_deleted_nothing_is_left_to_commit() -> None:
    reader = reader_from(epoch=FIRST)
    reader.frame_arrived(1, Frame([stored(0, 9)], max_offset=9), 0.0)
    offsets(reader, 5)
    reader.commit_answered(commit_of(reader, 5), 0.0, Unavailable("offline"))
    assert (reader.is_deleted, reader.is_uncommitted) == (False, True)
    reader.commit_answered(commit_of(reader, 5), 0.0, TopicNotFound("gone"))
    assert (reader.is_deleted, reader.is_uncommitted) == (True, False)
    assert reader.commit_due(5, 0, 0.0, automatic=True) is None
    reader.renewed(reader.lease, 0.0)  # its broker has the topic
    assert (reader.is_deleted, reader.is_uncommitted) == (False, True)


def test_what_was_rejected_under_a_lease_may_be_recorded_under_another_one() -> None:
    reader = reader_from(epoch=FIRST)
    assert reader.renewed(Grant(FIRST, 0, 7, trust=LeaseDeadline()), 0.0) is not None
    assert not reader.may_be_recorded(FIRST)
    reader.lease.trust.is_broken = True
    assert reader.may_be_recorded(FIRST)
    assert reader.renewed(Grant(SECOND, 0, 7), 0.0) is not None
    assert (reader.may_be_recorded(FIRST), reader.may_be_recorded(SECOND)) == (True, False)


# ---- ranges ---------------------------------------------------------------------------------------


def batches_of(reader: QueueReader) -> list[tuple[int, int]]:
    """Return the first offset of each batch that is handed out, and how many messages were passed over before it."""
    found = []
    while (taken := reader.take_batch()) is not None:
        found.append((taken[0].base_offset, taken[1]))
    return found


def test_a_range_that_the_queue_does_not_have_is_an_error_once_all_before_is_handed_out() -> None:
    reader = reader_from(options=RANGE, end=20)
    reader.frame_arrived(1, Frame([stored(0, 10)], max_offset=10), 0.0)
    reader.frame_arrived(1, Frame(max_offset=10, is_last=True), 0.0)
    assert batches_of(reader) == [(0, 0)]
    assert isinstance(reader.error, OffsetOutOfRange)


def test_a_slave_that_does_not_have_all_of_a_range_is_waited_for() -> None:
    reader = reader_from(options=RANGE, end=20)
    reader.frame_arrived(1, Frame(max_offset=10, is_last=True, from_slave=True), 0.0)
    assert (reader.error, reader.wake_at) == (None, 0.05)


def test_a_later_term_is_asked_whether_it_has_cut_the_range() -> None:
    reader = reader_from(options=RANGE, end=20, term=2)
    reader.frame_arrived(1, Frame([stored(0, 10)], max_offset=20, term=2), 0.0)
    assert reader.frame_arrived(1, Frame([stored(10, 10)], max_offset=20, term=3), 0.0) == [
        Cancel(1),
        Pull(2, 20, 1, 1, term=2),
    ]
    assert reader.frame_arrived(2, Frame(max_offset=30, term=3), 0.0)[0] == Cancel(2)
    assert batches_of(reader) == [(0, 0)], "the frame of the later term was dropped"
    assert reader.frame_arrived(3, Frame([stored(10, 10)], max_offset=30, term=3, is_last=True), 0.0) == []
    assert batches_of(reader) == [(10, 0)]
    assert not reader.taken_back


def test_a_range_that_a_later_term_has_cut_is_taken_back() -> None:
    reader = reader_from(options=RANGE, end=20, term=2)
    reader.frame_arrived(1, Frame([stored(0, 10)], max_offset=20, term=3), 0.0)
    assert reader.frame_arrived(2, out_of_range(0, 15), 0.0) == []
    assert isinstance(reader.error, OffsetOutOfRange)
    assert reader.taken_back
