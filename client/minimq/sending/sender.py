"""The part of sending that does I/O: it tells the `RecordAccumulator` what happens, and carries out what that decides.

All of it is on the event loop of the connection, but for the hand-over: a thread reserves room in the buffer, appends
what it sends there, and wakes the loop unless that was done for others. The loop takes in all that it finds: a lone
message leaves at once, and what gathers while requests are in flight travels in large batches. Ctrl-C in a caller
abandons its wait; what was handed over is sent. Code of users is called on a thread of its own.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Sequence
from functools import partial

from minimq.connection.client import ClusterClient
from minimq.sending.append_stream import AppendStream, StreamsByAddress
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.pending_batch import (
    PendingBatch,
    PendingMessage,
    Records,
    RecordsBatch,
    Target,
    UserCall,
    encode_batch,
    new_producer_id,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.record_accumulator import RecordAccumulator
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics
from minimq.transport.client_log import client_logger
from minimq_common.errors import InternalError, InvalidArgument, MiniMQError, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.outage_log import OutageLog
from minimq_common.wire.rpc import keep_freed_memory
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)
client_logger("minimq.sending.pending_batch")

#: How often late tries are looked for.
_TICK_S = 0.1
#: How long the end of the callbacks is waited for.
_JOIN_S = 5.0
_STATUS = {status.value: status for status in SendStatus}


class Sender:
    """Sends messages and batches. `send_message`, `send_batch`, `statistics` and `close` are thread-safe."""

    def __init__(self, client: ClusterClient, options: ProducerOptions) -> None:
        keep_freed_memory()  # batches of 1 MiB pass through
        self._client = client
        self._routes = client.routes
        self._call_soon = client.connection.call_soon
        self._producer_id = new_producer_id()
        self._encode = partial(encode_batch, options.max_body_bytes, options.batch_compression, self._producer_id)
        self.buffer = SendBuffer(options.buffer_bytes, block_when_full=options.block_when_full)
        #: How often the loop has begun to take in, and for which of these times it was woken.
        self._takes = 0
        self._woken = -1
        self._accumulator = RecordAccumulator(
            QueueSelector(client.connection.routes.known.get, options, random.Random(), client.connection.health),
            options,
            self,
            self.buffer.number,
            self.buffer.close_number,
        )
        self._waiting = self._accumulator.waiting
        self._streams = StreamsByAddress(client.connection, AppendStream)
        #: Of brokers that do not answer, by name.
        self._outages: dict[str, OutageLog] = {}
        self.callbacks = CallbackThread("minimq-producer-callbacks")
        self._timer: asyncio.TimerHandle | None = None
        self._tick_at = 0.0
        self._ended = threading.Event()
        client.connection.at_end(self._end)

    # ---- handing over, by any thread ------------------------------------------------------------

    def send_message(self, item: PendingMessage, *, wait: bool = True) -> bool:
        """Send a checked message; return False when there is no room for it and the caller does not wait."""
        item.born_ms = time.time_ns() // 1_000_000
        item.handed_in = time.monotonic()
        try:
            if not self.buffer.try_add(item):
                if not wait:
                    return False
                self.buffer.wait_for_room(partial(self.buffer.try_add, item))
            takes = self._takes
            if self._woken != takes:
                self._call_soon(self._take_in)
                self._woken = takes
        except MiniMQError:
            raise
        except BaseException:  # Ctrl-C, which may have come after the message was added
            self._call_soon(self._take_in)
            raise
        return True

    def send_batch(self, batch: RecordsBatch, records: Records) -> None:
        """Send records, which have a share of the buffer; if this raises, call `take_back`."""
        batch.handed_in = time.monotonic()
        self.buffer.number(batch)
        assert batch.number is not None
        batch.data = records.build(time.time_ns() // 1_000_000, self._producer_id, *batch.number)
        self.buffer.hand_over(batch)
        self._call_soon(self._take_in)

    def take_back(self, batch: PendingBatch) -> bool:
        """Give back the room and the number of a batch that was not handed over; return whether it was not."""
        if batch.is_handed_over:  # Ctrl-C came between that and the waking of the loop
            self._call_soon(self._take_in)
            return False
        self._call_soon(self.buffer.close_number, batch)
        self.buffer.release(batch.share)
        return True

    def close(self) -> None:
        """End all streams, fail what is left, and end the callbacks. A call that was interrupted can be made again."""
        self._call_soon(self._end)  # unless the loop has ended, and with it the rest
        self._ended.wait()
        self._client.connection.not_at_end(self._end)
        self.callbacks.close(_JOIN_S)  # one may never end

    def statistics(self) -> ProducerStatistics:
        """Return what was done so far."""
        return self._accumulator.statistics((self.buffer.messages, self.buffer.bytes), time.monotonic())

    # ---- on the event loop ----------------------------------------------------------------------

    def _take_in(self) -> None:
        self._takes += 1
        handed = self.buffer.handed
        count = len(handed)
        now = time.monotonic()
        for _ in range(count):
            item = handed.popleft()
            if isinstance(item, PendingBatch):
                self._accumulator.add_batch(item)
            else:
                self._accumulator.add_message(item, now, is_lone=count == 1)
        if self._waiting:
            self._drain()
        if self._timer is None and count:
            self._keep_time(now)

    def _drain(self) -> None:
        while self._accumulator.drain(time.monotonic()):
            pass

    # ---- what the accumulator decides -----------------------------------------------------------

    def find_route(self, topic: str, *, is_gone: bool) -> None:
        """Ask for the route of a topic; forget the known one first if the topic is gone."""
        if is_gone:
            self._routes.forget(topic)
        self._routes.refresh_soon(topic)

    def abandon(self, stream: object, target: Target, error: MiniMQError) -> None:
        """End the stream by which a try was sent that its broker has left without an answer."""
        self._not_stored(target, error)
        assert isinstance(stream, AppendStream)
        stream.fail(Unavailable(f"broker {target.address} left an earlier request without an answer"))

    def transmit(self, batch: PendingBatch) -> None:
        """Encode a batch unless that was done, and send it to its target."""
        if batch.data is None:
            assert batch.number is not None
            try:
                batch.data = self._encode(batch.messages, batch.message_group, batch.number)
            except Exception as error:  # noqa: BLE001 - a changed message can fail in any way
                # Each was checked when it was handed in, so one was changed since.
                text = error.message if isinstance(error, MiniMQError) else repr(error)
                reason = (
                    f"a message, or one that was to travel with it, was changed after it had been handed in: {text}"
                )
                self._accumulator.give_up(batch, InvalidArgument(reason))
                return
        assert batch.target is not None
        queue, address = batch.target
        try:
            batch.stream = stream = self._streams[address]
            # A message for a compacted topic always has a queue.
            route = self._routes.known(batch.topic) if batch.queue is not None else None
            key_queues = route.key_queues if route is not None else 0
            answer = partial(self._answered, batch, batch.attempts)
            stream.append(queue, batch.data, answer, batch.transaction, batch.due, key_queues, batch.traceparent)
        except MiniMQError as error:
            self._failed(batch, batch.attempts, error)

    def _answered(
        self, batch: PendingBatch, attempt: int, result: broker_pb2.AppendResult | None, error: MiniMQError | None
    ) -> None:
        try:
            target = batch.target
            if result is None or target is None:
                self._failed(batch, attempt, error or InternalError("the broker gave an empty answer"))
            else:
                queue = target.queue
                if result.queue_id != queue.queue_id:  # an earlier try had stored it there
                    queue = MessageQueue(queue.topic, queue.broker_name, result.queue_id)
                receipt = BatchReceipt(
                    queue,
                    result.base_offset,
                    result.store_timestamp_ms,
                    batch.count,
                    self._producer_id,
                    batch.sequence,
                    _STATUS.get(result.status, SendStatus.SEND_OK),  # whatever a newer broker says, it is stored
                    result.due_ms,
                    result.recall_id if batch.due_bucket is not None and batch.due_bucket.alone else None,
                )
                if self._accumulator.acknowledged(batch, attempt, receipt, time.monotonic()):
                    if self._outages:
                        self._answers_again(target)
                    self.complete(batch, receipt, None)
        except Exception as fault:  # a fault of ours: whoever waits for this batch must hear of it all the same
            log.exception("producer: an answer was not taken in topic=%s", batch.topic)
            reason = InternalError(f"the producer failed over an answer: {fault!r}")
            self._accumulator.give_up(batch, reason)
        if self._waiting:
            self._drain()

    def _failed(self, batch: PendingBatch, attempt: int, error: MiniMQError) -> None:
        target = batch.target  # that of the try
        if self._accumulator.failed(batch, attempt, error, time.monotonic()) and target is not None:
            self._not_stored(target, error)

    def _not_stored(self, target: Target, error: MiniMQError) -> None:
        queue, address = target
        if not error.answered:
            outage = self._outages.setdefault(queue.broker_name, OutageLog(log))
            text = "producer: broker does not answer broker=%s address=%s reason=%s"
            outage.failed(text, queue.broker_name, address, error, cause=error)

    def _answers_again(self, target: Target) -> None:
        name = target.queue.broker_name
        if (outage := self._outages.pop(name, None)) is not None:
            outage.worked("producer: broker answers broker=%s address=%s", name, target.address)

    def complete(self, batch: PendingBatch, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        """Tell the outcome of a batch."""
        share = batch.share
        size = share.size
        self.buffer.grow(share, -size)  # first: who gets a receipt may send the next message at once
        calls: Sequence[UserCall] = ()
        try:
            calls = batch.complete(receipt, error)
        except Exception:
            log.exception("producer: an outcome was not taken in topic=%s", batch.topic)
        if not calls:
            self.buffer.release(share)
            return
        self.buffer.grow(share, size)  # again, until the callbacks have run: they count against the buffer
        for call in calls:
            self.callbacks.run(call)
        self.callbacks.run(partial(self.buffer.release, share))

    def _tick(self) -> None:
        now = time.monotonic()
        self._timer = None
        held_up_s = now - self._tick_at
        if held_up_s > _TICK_S:  # pending answers are read after this callback
            self._accumulator.held_up(held_up_s)
        try:
            if now >= self._accumulator.wake_at:
                self._accumulator.time_passed(now)
            if self._waiting:
                self._drain()
        except Exception:
            log.exception("producer: a look at what is late failed")
        if not self._accumulator.is_empty:
            self._keep_time(now)

    def _keep_time(self, now: float) -> None:
        self._tick_at = now + _TICK_S
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _end(self) -> None:
        """Fail what is left, and end the streams: the producer closes, or its loop ends."""
        try:
            self.buffer.end()
            self._take_in()
            self._accumulator.close()
            self._streams.close()
            if self._timer is not None:
                self._timer.cancel()
        finally:
            self._ended.set()
