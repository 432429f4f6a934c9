"""The I/O of sending: reports events to the `RecordAccumulator`, and carries out its decisions.

A sending thread reserves room in the `SendBuffer`, queues its message there, and wakes the event loop unless another
thread already did. Everything else runs on the event loop of the connection. The loop takes all queued messages at
once: a lone message is sent at once, and messages that arrive while requests are in flight are sent in large batches.
Ctrl-C in a caller ends only its wait; queued messages are sent. User callbacks run on a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections.abc import Sequence
from functools import partial

from minimq.connection.client import ClusterClient
from minimq.connection.fork_guard import check_may_wait
from minimq.sending.append_stream import AppendStream, StreamsByAddress
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.pending_batch import (
    PendingBatch,
    PendingMessage,
    PendingRecords,
    Records,
    Target,
    UserCall,
    encode_batch,
    new_producer_id,
    number_taken,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import STATUSES, BatchReceipt
from minimq.sending.record_accumulator import RecordAccumulator
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics
from minimq_common.errors import InternalError, InvalidArgument, MinimqError, Unavailable, UsageError
from minimq_common.model import MessageQueue
from minimq_common.retry_log import RetryLog
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Interval of checks for attempts that timed out and retries that are due.
_TICK_S = 0.1
#: Timeout of `close` for running callbacks.
_JOIN_S = 5.0


class Sender:
    """Sends messages and batches. Thread-safe, except for the methods of `BatchSink`, which run on the event loop."""

    def __init__(self, client: ClusterClient, options: ProducerOptions) -> None:
        self._client = client
        self._routes = client.routes
        self._call_soon = client.connection.call_soon
        self._producer_id = new_producer_id()
        self._encode = partial(encode_batch, options.max_body_bytes, options.batch_compression, self._producer_id)
        self.callbacks = CallbackThread("minimq-producer-callbacks")
        self.buffer = SendBuffer(
            options.buffer_bytes, block_when_full=options.block_when_full, check_may_wait=self.check_may_wait
        )
        #: Drains of the buffer so far, and the count for which the loop was woken; equal if a wake-up is pending.
        self._takes = 0
        self._woken = -1
        known, health = client.connection.routes.known.get, client.connection.health
        self._selector = QueueSelector(known, options, random.Random(), health)
        self._accumulator = RecordAccumulator(self._selector, options, self, self.buffer.number)
        self._waiting = self._accumulator.waiting
        self._streams = StreamsByAddress(client.connection, AppendStream)
        #: For brokers that do not answer, by broker name.
        self._outages: dict[str, RetryLog] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._ended = threading.Event()
        client.connection.at_end(self._end)

    # ---- by any thread --------------------------------------------------------------------------

    def check_may_wait(self) -> None:
        """Raise `UsageError` on a thread where a blocking call of the producer would wait for itself."""
        check_may_wait()
        if self.callbacks.is_mine():
            raise UsageError(
                "this is a callback or an interceptor of the producer, where a blocking call of the same producer "
                "would wait for itself: use send_async or send_one_way, or another thread"
            )

    def send_message(self, item: PendingMessage, *, wait: bool = True, deadline: float | None = None) -> bool:
        """Send a prepared message. If the buffer is full, return False; with `wait`, see `SendBuffer.wait_for_room`."""
        item.born_ms = time.time_ns() // 1_000_000
        item.handed_in = time.monotonic()
        try:
            if not self.buffer.try_add(item):
                if not wait:
                    return False
                self.buffer.wait_for_room(partial(self.buffer.try_add, item), deadline)
            takes = self._takes
            if self._woken != takes:
                self._call_soon(self._take_in)
                self._woken = takes
        except MinimqError:
            raise
        except BaseException:  # Ctrl-C, perhaps after the message was added
            self._call_soon(self._take_in)
            raise
        return True

    def send_batch(self, batch: PendingRecords, records: Records) -> None:
        """Send records whose buffer share is reserved. If this raises, call `take_back`."""
        batch.handed_in = time.monotonic()
        self.buffer.number(batch)
        assert batch.number is not None
        batch.data = records.build(time.time_ns() // 1_000_000, self._producer_id, *batch.number)
        self.buffer.hand_over(batch)
        self._call_soon(self._take_in)

    def take_back(self, batch: PendingBatch) -> bool:
        """Release the room and the number of a batch after an error; return False if the batch is sent all the same."""
        if batch.is_handed_over:  # Ctrl-C came after `hand_over`, before the loop was woken
            self._call_soon(self._take_in)
            return False
        self._call_soon(self.buffer.finish, batch)
        self.buffer.release(batch.share)
        return True

    def close(self) -> None:
        """Close all streams, fail the remaining batches, and end the callback thread. Can be repeated after Ctrl-C."""
        self._call_soon(self._end)  # if the loop has ended, it has called `_end` itself
        self._ended.wait()
        self._client.connection.not_at_end(self._end)
        self.callbacks.close(_JOIN_S)  # with a timeout: a callback may never return

    def statistics(self) -> ProducerStatistics:
        avoided = self._selector.avoided(time.monotonic())
        return self._accumulator.counters.snapshot((self.buffer.messages, self.buffer.bytes), avoided)

    @property
    def in_doubt(self) -> int:
        """Number of failed messages that may be stored."""
        return self._accumulator.counters.in_doubt

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

    # ---- carrying out the accumulator's decisions (`BatchSink`) ------------------------------------

    def find_route(self, topic: str, *, is_gone: bool) -> None:
        """Refresh the route of a topic in the background; drop the known one first if the topic is gone."""
        if is_gone:
            self._routes.forget(topic)
        self._routes.refresh_soon(topic)

    def delay_of(self, stream: object) -> str:
        """Return the end of a sentence with the reason why a stream has no answer, if its broker has reported one."""
        seconds = stream.syncing_s if isinstance(stream, AppendStream) else 0.0
        return f": its disk has not finished a sync for {seconds:.1f} s" if seconds else ""

    def moved_at(self, stream: object) -> float:
        """Return when the broker acknowledged a part of a large batch last, on the stream of an attempt."""
        return stream.moved_at if isinstance(stream, AppendStream) else -math.inf

    def abandon(self, stream: object, target: Target, error: MinimqError) -> None:
        self._not_stored(target, error)
        assert isinstance(stream, AppendStream)
        stream.fail(
            Unavailable(f"broker {target.address} left an earlier request without an answer{self.delay_of(stream)}")
        )

    def transmit(self, batch: PendingBatch) -> None:
        """Encode a batch unless an earlier attempt did, and send it to its target."""
        if batch.data is None:
            assert batch.number is not None
            try:
                batch.data = self._encode(batch.messages, batch.message_group, batch.number)
            except Exception as error:  # noqa: BLE001 - a changed message can fail in any way
                # Every message was valid when it was sent, so the user changed one since.
                text = error.message if isinstance(error, MinimqError) else repr(error)
                reason = f"a message of the batch was changed after it had been sent: {text}"
                self._accumulator.give_up(batch, InvalidArgument(reason))
                return
        assert batch.target is not None
        queue, address = batch.target
        try:
            batch.stream = stream = self._streams[address]
            # Messages of a compacted topic always have a fixed queue.
            route = self._routes.known(batch.topic) if batch.queue is not None else None
            key_queues = route.key_queues if route is not None else 0
            answer = partial(self._answered, batch, batch.attempts)
            stream.append(queue, batch.data, answer, batch.transaction, batch.due, key_queues)
        except MinimqError as error:
            self._failed(batch, batch.attempts, error)

    def _answered(
        self, batch: PendingBatch, attempt: int, result: broker_pb2.AppendResult | None, error: MinimqError | None
    ) -> None:
        try:
            target = batch.target
            if result is None or target is None:
                self._failed(batch, attempt, error or InternalError("the broker gave an empty answer"))
            elif result.status == broker_pb2.SEND_STATUS_ALREADY_STORED and not batch.may_be_stored:
                self._failed(batch, attempt, number_taken(target.queue.broker_name))
            else:
                queue = target.queue
                if result.queue_id != queue.queue_id:  # an earlier attempt stored it in another queue
                    queue = MessageQueue(queue.topic, queue.broker_name, result.queue_id)
                receipt = BatchReceipt(
                    queue,
                    result.base_offset,
                    result.store_timestamp_ms,
                    batch.count,
                    self._producer_id,
                    batch.sequence,
                    STATUSES[result.status],
                    result.held_until_ms,
                    result.held_id if batch.due_bucket is not None and batch.due_bucket.alone else None,
                )
                if self._accumulator.acknowledged(batch, attempt, receipt, time.monotonic()):
                    name = queue.broker_name
                    if self._outages and (outage := self._outages.pop(name, None)) is not None:
                        outage.worked("producer: broker answers broker=%s address=%s", name, target.address)
                    self.complete(batch, receipt, None)
        except Exception as fault:  # a bug of this client: the batch must fail, or its senders wait forever
            log.exception("producer: processing an answer failed topic=%s", batch.topic)
            reason = InternalError(f"the producer failed to process an answer: {fault!r}")
            self._accumulator.give_up(batch, reason)
        if self._waiting:
            self._drain()

    def _failed(self, batch: PendingBatch, attempt: int, error: MinimqError) -> None:
        target = batch.target  # read before `failed`, after which a new attempt may have another target
        if self._accumulator.failed(batch, attempt, error, time.monotonic()) and target is not None:
            self._not_stored(target, error)

    def _not_stored(self, target: Target, error: MinimqError) -> None:
        queue, address = target
        if not error.answered:
            outage = self._outages.setdefault(queue.broker_name, RetryLog(log))
            text = "producer: broker does not answer broker=%s address=%s reason=%s"
            outage.failed(text, queue.broker_name, address, error, cause=error)

    def complete(self, batch: PendingBatch, receipt: BatchReceipt | None, error: MinimqError | None) -> None:
        """Deliver the outcome of a batch to its senders, and release its share of the buffer."""
        share = batch.share
        size = share.size
        self.buffer.finish(batch)  # before the receipts: a sender may send its next message at once
        calls: Sequence[UserCall] = ()
        try:
            calls = batch.complete(receipt, error)
        except Exception:
            log.exception("producer: delivering an outcome failed topic=%s", batch.topic)
        if not calls:
            self.buffer.release(share)
            return
        self.buffer.grow(share, size)  # pending callbacks count against the buffer
        for call in calls:
            self.callbacks.run(call)
        self.callbacks.run(partial(self.buffer.release, share))

    def _tick(self) -> None:
        now = time.monotonic()
        self._timer = None
        try:
            if now >= self._accumulator.wake_at:
                self._accumulator.time_passed(now)
            if self._waiting:
                self._drain()
        except Exception:
            log.exception("producer: the check of timeouts and retries failed")
        if not self._accumulator.is_empty:
            self._keep_time(now)

    def _keep_time(self, now: float) -> None:
        self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _end(self) -> None:
        """Fail the remaining batches and close the streams, when the producer closes or its loop ends."""
        try:
            self.buffer.end()
            self._take_in()
            self._accumulator.close()
            self._streams.close()
            if self._timer is not None:
                self._timer.cancel()
        finally:
            self._ended.set()
