"""The decisions of a queue reader, played in virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from minimq.consuming.member_state import Grant, LeaseDeadline
from minimq.consuming.queue_decisions import Cancel, Commit, Decision, FetchOptions, Frame, OffsetReset, Pull
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.range_reader import RangeRead
from minimq.consuming.received import EncodedRecords
from minimq_common.errors import CorruptBatch, MinimqError, OffsetOutOfRange, QueueNotFound, Unavailable
from minimq_common.model import MessageQueue
from support.batches import encode, one
from support.cases import for_each
from support.handing import has_any, take

QUEUE = MessageQueue("t", "broker-a", 0)
OPTIONS = FetchOptions(100, 1 << 20, offset_reset="earliest")
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


def reader_from(offset: int = 0, *, options: FetchOptions = OPTIONS, term: int = 0, epoch: int = 0) -> QueueReader:
    """Return a reader whose first pull is under way."""
    reader = QueueReader(QUEUE, Grant(epoch, offset, 7, address="a", term=term), options)
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
    assert kinds(reader.seek(6, 9.0)) == [Pull]
    assert reader.error is None


def test_a_batch_with_more_or_fewer_messages_than_the_index_says_is_damaged() -> None:
    reader = fetched(0, stored(0, 3), EncodedRecords(3, 0, 0, 3, stored(3, 2).data), stored(6, 3))
    assert len(offsets(reader)) == 3
    with pytest.raises(CorruptBatch, match=r"a batch of 2 records stands where 3 should.*seek to 6"):
        take(reader, 9, 0.0)


# ---- pulls ----------------------------------------------------------------------------------------


def test_readers_divide_what_their_consumer_may_buffer() -> None:
    options = FetchOptions(100, 1000, readers=lambda: 4)
    pull = pull_of(QueueReader(QUEUE, NO_LEASE, options).tick(0.0))
    assert (pull.max_messages, pull.max_bytes) == (25, 250)
    many = FetchOptions(100, 1000, readers=lambda: 2000)
    pull = pull_of(QueueReader(QUEUE, NO_LEASE, many).tick(0.0))
    assert (pull.max_messages, pull.max_bytes) == (1, 1)  # a broker sends one batch nevertheless


def test_an_error_that_lasts_is_told_once_and_a_seek_ends_it() -> None:
    reader = reader_from()
    assert reader.frame_arrived(1, rejected(QueueNotFound("no such queue")), 0.0) == []
    assert isinstance(reader.take_error(), QueueNotFound)
    assert (reader.take_error(), reader.tick(99.0)) == (None, [])
    assert kinds(reader.seek(0, 0.0)) == [Pull]


# ---- slaves ---------------------------------------------------------------------------------------


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


# ---- what is not stored ---------------------------------------------------------------------------


def out_of_range(first: int, end: int, term: int = 0) -> Frame:
    return rejected(OffsetOutOfRange("not stored"), min_offset=first, max_offset=end, term=term)


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
    assert reset == OffsetReset(QUEUE, 1_000_000, 1_000, 0, 1_000)
    assert isinstance(pull, Pull)
    reader.frame_arrived(pull.number, Frame([stored(1_000, 5)], max_offset=1_005), 0.0)
    offsets(reader)
    reset, _ = reader.frame_arrived(pull.number, out_of_range(0, 1_002), 0.0)
    assert reset == OffsetReset(QUEUE, 1_005, 1_002, 0, 1_002)


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


def test_a_later_term_is_asked_whether_it_has_cut_the_range() -> None:
    reader = RangeRead(reader_from(options=RANGE, term=2), end=20)
    reader.frame_arrived(1, Frame([stored(0, 10)], max_offset=20, term=2), 0.0)
    assert reader.frame_arrived(1, Frame([stored(10, 10)], max_offset=20, term=3), 0.0) == [
        Cancel(1),
        Pull(2, 20, 1, 1, term=2),
    ]
    assert reader.frame_arrived(2, Frame(max_offset=30, term=3), 0.0)[0] == Cancel(2)
    assert batches_of(reader.reader) == [(0, 0)], "the frame of the later term was dropped"
    assert reader.frame_arrived(3, Frame([stored(10, 10)], max_offset=30, term=3, is_last=True), 0.0) == []
    assert batches_of(reader.reader) == [(10, 0)]
    assert not reader.is_taken_back


def test_a_range_that_a_later_term_has_cut_is_taken_back() -> None:
    reader = RangeRead(reader_from(options=RANGE, term=2), end=20)
    reader.frame_arrived(1, Frame([stored(0, 10)], max_offset=20, term=3), 0.0)
    assert reader.frame_arrived(2, out_of_range(0, 15), 0.0) == []
    assert isinstance(reader.reader.error, OffsetOutOfRange)
    assert reader.is_taken_back
