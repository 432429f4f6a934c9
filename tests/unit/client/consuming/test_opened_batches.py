"""Batches that a consumer decodes on a thread."""

from __future__ import annotations

from minimq import Message, MessageQueue
from minimq.consuming.consumer import Consumer
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.read_ahead import ReadyBatches
from minimq.consuming.received import EncodedRecords
from minimq_common.batch.builder import BatchBuilder


def test_a_batch_that_is_opened_twice_keeps_its_messages() -> None:
    """A thread pool may run later the call that it could not start a thread for."""
    builder = BatchBuilder(1 << 20)
    builder.add([Message("orders", b"body")])
    stored = EncodedRecords(0, 1_700_000_000_000, 0, 1, builder.build(1, 1, 0))
    handed = ReadyBatches(MessageQueue("orders", "broker-a", 0), [stored], 0, 0)
    consumer = Consumer(
        "127.0.0.1:1", None, client_id=None, strategy="averagely", start="earliest", options=ConsumerOptions()
    )
    try:
        consumer.open(handed)
        consumer.open(handed)
    finally:
        consumer.shut_down()
    assert [message.body for message in handed.messages] == [b"body"]
