"""What a fetcher hands out of what was fetched."""

from __future__ import annotations

import pytest

from minimq.receiving.fetcher import Fetcher
from minimq_common.errors import CorruptBatch
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2
from support.batches import encode, one
from support.waiting import wait_until


def fetcher_with(*batches: bytes, start: int = 0, size: int = 3) -> Fetcher:
    """Return a fetcher that has fetched batches of `size` messages each, and reads from an offset on."""
    fetcher = Fetcher(MessageQueue("t", "broker-a", 0), start, epoch=0, topic_id=0)
    stored = [
        broker_pb2.StoredBatch(base_offset=number * size, count=size, batch=batch)
        for number, batch in enumerate(batches)
    ]
    fetcher.add(broker_pb2.PullFrame(batches=stored, max_offset=len(batches) * size))
    return fetcher


def batch_of(*bodies: bytes) -> bytes:
    return encode([one(body=body) for body in bodies])


A, B, C = batch_of(b"0", b"1", b"2"), batch_of(b"3", b"4", b"5"), batch_of(b"6", b"7", b"8")


def test_small_batches_are_handed_out_together() -> None:
    fetcher = fetcher_with(A, B, C, start=1)
    assert [message.body for message in fetcher.take(6)] == [b"1", b"2", b"3", b"4", b"5", b"6"]
    assert fetcher.position == 7
    assert [message.queue_offset for message in fetcher.take(6)] == [7, 8]
    assert fetcher.position == 9
    assert not fetcher.has_messages


def test_what_is_ahead_of_a_damaged_batch_comes_first() -> None:
    fetcher = fetcher_with(A, B[:-1] + bytes([B[-1] ^ 1]), C)
    assert [message.body for message in fetcher.take(9)] == [b"0", b"1", b"2"]
    with pytest.raises(CorruptBatch, match="seek to 6"):
        fetcher.take(9)
    assert fetcher.position == 3


HOUR_MS = 3_600_000


@pytest.mark.parametrize(
    ("stored_ms", "now_ms", "delay_ms", "due"),
    [
        (10 * HOUR_MS, 10 * HOUR_MS, 2 * HOUR_MS, False),
        (10 * HOUR_MS, 11 * HOUR_MS, 2 * HOUR_MS, False),
        (10 * HOUR_MS, 12 * HOUR_MS, 2 * HOUR_MS, True),
        (2_000_000 * HOUR_MS, 2_000_002 * HOUR_MS, 2 * HOUR_MS, True),  # which is long after today
        (10 * HOUR_MS, 3 * HOUR_MS, 20, True),  # the broker's clock was set back
    ],
)
def test_a_wait_is_counted_by_the_clock_of_the_broker(stored_ms: int, now_ms: int, delay_ms: int, due: bool) -> None:
    fetcher = Fetcher(MessageQueue("t", "broker-a", 0), 0, epoch=0, topic_id=0)
    fetcher.delay_ms = delay_ms
    stored = broker_pb2.StoredBatch(base_offset=0, count=3, store_timestamp_ms=stored_ms, batch=A)
    fetcher.add(broker_pb2.PullFrame(batches=[stored], max_offset=3, now_ms=now_ms))
    if due:
        wait_until(lambda: fetcher.has_messages)
    else:
        assert not fetcher.has_messages


def test_a_message_shows_the_beginning_of_its_body() -> None:
    short, long = fetcher_with(batch_of(b"caf\xc3\xa9", b"x" * 5000), size=2).take(2)
    assert repr(short) == "ReceivedMessage(t/broker-a/0, offset 0, tag None, b'caf\\xc3\\xa9', 5 bytes)"
    assert repr(long) == f"ReceivedMessage(t/broker-a/0, offset 1, tag None, b'{'x' * 60}'..., 5000 bytes)"


def test_a_batch_with_more_or_fewer_messages_than_the_index_says_is_damaged() -> None:
    fetcher = fetcher_with(A, batch_of(b"3", b"4"), C)
    assert len(fetcher.take(9)) == 3
    with pytest.raises(CorruptBatch, match=r"a batch of 2 records stands where 3 should.*seek to 6"):
        fetcher.take(9)


def test_what_a_broker_sends_again_is_handed_out_once() -> None:
    fetcher = fetcher_with(A, B)
    again = [broker_pb2.StoredBatch(base_offset=base, count=3, batch=batch) for base, batch in ((0, A), (5, C))]
    fetcher.add(broker_pb2.PullFrame(batches=again, max_offset=8))

    assert [message.body for message in fetcher.take(9)] == [b"0", b"1", b"2", b"3", b"4", b"5", b"7", b"8"]
    assert not fetcher.has_messages


def test_only_what_was_read_already_is_no_message() -> None:
    fetcher = fetcher_with(start=3)
    fetcher.add(broker_pb2.PullFrame(batches=[broker_pb2.StoredBatch(count=3, batch=A)], max_offset=3))

    assert not fetcher.has_messages
