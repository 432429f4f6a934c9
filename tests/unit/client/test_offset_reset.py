"""Where a fetcher goes on when the offset that it was to fetch is not stored, and what becomes of what is in hand."""

from __future__ import annotations

import pytest

from minimq.receiving.fetcher import Fetcher
from minimq.receiving.in_hand import InHand
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.process_queue import Limits
from minimq.receiving.received import ReceivedBatch, ReceivedMessage, StoredBatch
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2
from support.batches import encode, one

QUEUE = MessageQueue("t", "broker-a", 0)


def stored(first: int, count: int) -> broker_pb2.StoredBatch:
    batch = encode([one(body=b"%d" % number) for number in range(first, first + count)])
    return broker_pb2.StoredBatch(base_offset=first, count=count, batch=batch)


def fetched(first: int, count: int) -> Fetcher:
    """Return a fetcher that has fetched a batch and handed nothing out."""
    fetcher = Fetcher(QUEUE, first, epoch=0, topic_id=0)
    fetcher.add(broker_pb2.PullFrame(batches=[stored(first, count)], max_offset=first + count))
    return fetcher


def wanted_next(fetcher: Fetcher) -> int:
    return fetcher.request(1, 1, 0.0).offset


@pytest.mark.parametrize(("rule", "offset"), [("earliest", 50), ("latest", 90)])
def test_what_was_fetched_comes_first_and_what_was_deleted_is_passed_over(rule: str, offset: int) -> None:
    fetcher = fetched(10, 5)
    assert fetcher.reset(50, 90, rule) == OffsetReset(QUEUE, 15, offset, 50, 90)
    assert (fetcher.position, wanted_next(fetcher), fetcher.sought) == (10, offset, False)
    assert [message.queue_offset for message in fetcher.take(100)] == [10, 11, 12, 13, 14]
    assert fetcher.position == offset


def test_of_a_queue_that_is_empty_all_is_missed() -> None:
    fetcher = Fetcher(QUEUE, 3, epoch=0, topic_id=0)
    reset = fetcher.reset(8, 8, "earliest")
    assert reset == OffsetReset(QUEUE, 3, 8, 8, 8)
    assert (reset.deleted, reset.missed, reset.is_back, fetcher.position) == (5, 5, False, 8)


def test_beyond_the_end_it_goes_back_there_and_so_may_the_commit() -> None:
    fetcher = fetched(10, 5)
    fetcher.take(100)
    reset = fetcher.reset(0, 12, "latest")
    assert reset == OffsetReset(QUEUE, 15, 12, 0, 12)
    assert (reset.deleted, reset.missed, reset.is_back) == (0, 0, True)
    assert (fetcher.position, wanted_next(fetcher), fetcher.sought) == (12, 12, True)


def test_what_was_fetched_and_is_no_more_is_fetched_again() -> None:
    """Only the read-ahead was beyond the end: the reader has missed nothing."""
    fetcher = fetched(10, 5)
    fetcher.take(2)
    assert fetcher.reset(0, 13, "earliest") is None
    assert (fetcher.position, wanted_next(fetcher), fetcher.sought) == (12, 12, False)
    assert not fetcher.has_messages


@pytest.mark.parametrize(
    ("reset", "text"),
    [
        (
            OffsetReset(QUEUE, 3, 8, 8, 20),
            "offset 3 of queue t/broker-a/0 is not stored any more: 5 messages are gone, going on at 8",
        ),
        (
            OffsetReset(QUEUE, 3, 20, 8, 20),
            "offset 3 of queue t/broker-a/0 is not stored any more: 5 messages are gone and 12 passed over, going on "
            "at 20",
        ),
        (
            OffsetReset(QUEUE, 30, 20, 8, 20),
            "offset 30 of queue t/broker-a/0 was taken back, since the queue lost its last messages: going on at 20",
        ),
    ],
)
def test_it_says_what_happened(reset: OffsetReset, text: str) -> None:
    assert str(reset) == text


# ---- what listeners have in hand ------------------------------------------------------------------


def messages(first: int, count: int) -> list[ReceivedMessage]:
    return ReceivedBatch(QUEUE, StoredBatch.from_wire(stored(first, count))).messages(first)


@pytest.mark.parametrize(("end", "again"), [(12, 10), (8, 8)])
def test_what_is_in_hand_of_a_queue_that_has_shrunk_is_read_again(end: int, again: int) -> None:
    in_hand = InHand(Limits(100, 1 << 20, 100), lambda: None, one_at_a_time=False)
    in_hand.start(QUEUE, 10)
    in_hand.blocked()
    taken = messages(10, 5)
    [call] = in_hand.take(taken, [taken], lambda offset: None)
    assert in_hand.start_over(QUEUE, end) == again
    assert not in_hand.is_current(call)
    in_hand.finish(call)
    assert in_hand.offsets(dict) == {QUEUE: again}


def test_a_queue_that_has_left_is_not_begun_again() -> None:
    in_hand = InHand(Limits(100, 1 << 20, 100), lambda: None, one_at_a_time=False)
    assert in_hand.start_over(QUEUE, 5) is None
    assert in_hand.offsets(dict) == {}


def test_of_which_log_an_offset_is_goes_along_until_the_reader_is_moved() -> None:
    fetcher = fetched(10, 5)
    assert fetcher.request(1, 1, 0.0).term == 0
    fetcher.take(1)
    fetcher.add(broker_pb2.PullFrame(batches=[stored(15, 5)], max_offset=20, term=3))
    assert (fetcher.request(1, 1, 0.0).term, fetcher.term_taken) == (3, 0)
    fetcher.take(2)
    assert fetcher.term_taken == 3
    fetcher.reset(0, 12, "earliest")  # by a broker: what was handed out is still of that log
    assert (fetcher.position, fetcher.term_taken) == (12, 3)
    fetcher.seek(19)  # by the user, who knows why
    assert (fetcher.request(1, 1, 0.0).term, fetcher.term_taken) == (0, 0)


def test_another_broker_is_asked_at_once_though_enough_is_buffered() -> None:
    fetcher = fetched(10, 5)
    assert fetcher.room(5, 1) == (0, 0)
    fetcher.to_check = True
    assert fetcher.room(5, 1) == (1, 1)
    fetcher.add(broker_pb2.PullFrame(max_offset=15, term=2))
    assert fetcher.room(5, 1) == (0, 0)
