"""Rows that wait for more of their destination take a bounded part of the memory."""

from __future__ import annotations

from concurrent.futures import Future

import pyarrow as pa

from minimq import MessageQueue
from minimq.features.tables.destinations import Destination
from minimq.features.tables.row_writer import GATHERED_BYTES, RowWriter
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq_common.batch.builder import BatchColumns


def test_all_is_sent_once_too_much_waits_over_all_destinations() -> None:
    sent = list[int]()

    def send(topic: str, queue: MessageQueue | None, batch: BatchColumns, /, *, may_move: bool) -> Future[BatchReceipt]:
        assert queue is not None
        assert not may_move
        sent.append(queue.queue_id)
        future: Future[BatchReceipt] = Future()
        future.set_result(BatchReceipt(queue, 0, 0, 1, 1, len(sent), SendStatus.SEND_OK))
        return future

    outbox = RowWriter(send, ProducerOptions(compression="none"))
    row = pa.record_batch({"body": [bytes(1 << 20)]})
    most = GATHERED_BYTES >> 20
    for number in range(
        most
    ):  # each for a queue of its own, none has enough for a batch, and all are a little too much
        outbox.add(Destination("t", MessageQueue("t", "broker-a", number)), row)
    assert sent == list(range(most))
    outbox.add(Destination("t", MessageQueue("t", "broker-a", 0)), row)
    assert len(sent) == most
    assert len(outbox.finish()) == most + 1
