"""The I/O of sending: reports events to the `RecordAccumulator`, and carries out its decisions.

A sending thread reserves room, queues its message, and wakes the event loop unless another thread already did.
Everything else runs on the event loop of the connection. The loop takes all queued messages at once: a lone message is
sent at once, and messages that arrive while requests are in flight are sent in large batches. Ctrl-C in a caller ends
only its wait; queued messages are sent. User callbacks run on a thread of their own.
"""

from __future__ import annotations

import asyncio
import logging
import math
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from operator import attrgetter

from minimq.connection import fork_guard
from minimq.connection.client import ClusterClient
from minimq.connection.fork_guard import check_may_wait, is_finalizing
from minimq.sending.append_stream import AppendStream, StreamsByAddress
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.pending_batch import (
    PendingBatch,
    PendingMessage,
    PendingRecords,
    Records,
    Target,
    encode_batch,
    new_producer_id,
    number_taken,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import STATUSES, BatchReceipt
from minimq.sending.record_accumulator import RecordAccumulator
from minimq.sending.statistics import ProducerStatistics
from minimq_common.batch.single import encode_single
from minimq_common.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    MinimqError,
    UsageError,
)
from minimq_common.model import MessageQueue
from minimq_common.retry_log import RetryLog
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_memory_of = attrgetter("memory")
#: Interval of checks for attempts that timed out and retries that are due.
_TICK_S = 0.1
#: Timeout of `close` for running callbacks.
_JOIN_S = 5.0


class Sender:
    """Sends messages and batches. Thread-safe, except for the methods of `BatchSink`, which run on the event loop."""

    def __init__(self, client: ClusterClient, options: ProducerOptions) -> None:
        self._client = client
        self._process = client.connection.process
        self._routes = client.routes
        self._call_soon = client.connection.call_soon
        self._options = options
        self._limit_bytes = options.buffer_bytes
        self._producer_id = new_producer_id()
        self._encode = partial(encode_batch, options.max_body_bytes, options.batch_compression, self._producer_id)
        self._can_encode_single = options.batch_compression is None
        self.callbacks = CallbackThread("minimq-producer-callbacks")
        #: Protects the next five; reentrant, as finalizers may send, too.
        self._lock = threading.RLock()
        self._closed = False
        #: What the event loop has not taken yet, and the bytes of its messages.
        self._handed: deque[PendingMessage | PendingRecords] = deque()
        self._handed_bytes = 0
        #: Bytes of all others without an outcome.
        self._bytes = 0
        #: Done once room is freed, or the sender is closed; None if nothing waits for that.
        self._freed: Future[None] | None = None
        #: Drains of `_handed` so far, and the count for which the loop was woken; equal if a wake-up is pending.
        self._takes = 0
        self._woken = -1
        #: Has the loop call `_take_in`.
        self._wake: Callable[[], object] = self._first_wake
        # The rest belongs to the event loop.
        known, health = client.connection.routes.known.get, client.connection.health
        self._selector = QueueSelector(known, options, random.Random(), health)
        self._accumulator = RecordAccumulator(self._selector, options, self)
        self._waiting = self._accumulator.waiting
        self._streams = StreamsByAddress(client.connection, AppendStream)
        #: Number of messages that were taken, and have no outcome.
        self._messages = 0
        self._completed = asyncio.Event()
        #: For brokers that do not answer, by broker name.
        self._outages: dict[str, RetryLog] = {}
        self._timer: asyncio.TimerHandle | None = None
        #: Numbers of messages that the end has failed, and of those that may be stored.
        self._lost = (0, 0)
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

    def add(self, item: PendingMessage) -> Future[None] | None:
        """Send a prepared message; or return a future that is done once room is freed. Raises `Closed`."""
        if self._process.made_in != fork_guard.process_id or is_finalizing():  # `is_void`, without a call
            self._process.check()
        item.born_ms = time.time_ns() // 1_000_000
        item.handed_in = time.monotonic()
        try:
            with self._lock:
                if self._closed:
                    raise Closed("the producer is closed")
                used = self._bytes + self._handed_bytes
                if used and used + item.memory > self._limit_bytes:
                    return self._full()
                self._handed.append(item)
                self._handed_bytes += item.memory
        finally:  # also after Ctrl-C
            takes = self._takes
            if self._woken != takes:
                self._wake()
                self._woken = takes
        return None

    def _first_wake(self) -> None:
        loop = self._client.connection.started_loop()
        if loop is not None:  # else `_end` has rejected all messages
            self._wake = partial(loop.call_soon_threadsafe, self._take_in)
            self._wake()

    def reserve(self, batch: PendingRecords, size: int) -> Future[None] | None:
        """Reserve room for records of a batch; or return as `add`."""
        with self._lock:
            if self._closed:
                raise Closed("the producer is closed")
            used = self._bytes + self._handed_bytes
            if used and used + size > self._limit_bytes:
                return self._full()
            self._bytes += size
            batch.memory += size
            return None

    def grow(self, batch: PendingRecords, size: int) -> None:
        """Correct the room of a batch by `size` bytes, which may be negative."""
        with self._lock:
            self._bytes += size
            batch.memory += size

    def release(self, size: int) -> None:
        with self._lock:
            self._bytes -= size
            freed, self._freed = self._freed, None
        if freed is not None:
            freed.set_result(None)

    def _full(self) -> Future[None]:
        self._freed = self._freed or Future()
        return self._freed

    def wait_for_room(self, freed: Future[None], deadline: float = math.inf) -> None:
        """Block until room is freed. Raises `BufferFull` unless `block_when_full`, else `DeadlineExceeded` in time."""
        full = f"{self.used_bytes} bytes wait to be sent, the limit is {self._limit_bytes}"
        if not self._options.block_when_full:
            raise BufferFull(f"{full}: send more slowly, raise buffer_bytes, or set block_when_full")
        self.check_may_wait()
        left_s = None if deadline == math.inf else max(deadline - time.monotonic(), 0.0)
        try:
            freed.result(left_s)
        except TimeoutError:
            raise DeadlineExceeded(
                f"{full}, and the buffer stayed full: the message was not sent; send more slowly"
            ) from None

    def send_batch(self, batch: PendingRecords, records: Records) -> None:
        """Send records that have room. If this raises, call `take_back`."""
        batch.handed_in = time.monotonic()
        batch.number = self._accumulator.new_number()
        batch.data = records.build(time.time_ns() // 1_000_000, self._producer_id, *batch.number)
        with self._lock:
            if self._closed:
                raise Closed("the producer was closed before the message was sent")
            self._bytes -= batch.memory
            self._handed.append(batch)
            self._handed_bytes += batch.memory
        self._wake()

    def take_back(self, batch: PendingRecords, error: MinimqError) -> bool:
        """Fail a batch that the event loop has not got. False if the loop has ended: then only batches it had fail."""
        return self._call_soon(self._take_back, batch, error)

    def reject(self) -> None:
        """Reject new messages. Idempotent."""
        with self._lock:
            self._closed = True
        self.release(0)

    def close(self) -> tuple[int, int]:
        """Close all streams, fail the remaining batches, and end the callback thread. Can be repeated after Ctrl-C.

        Returns the number of messages that failed, and how many of them may be stored.
        """
        self._call_soon(self._end)  # if the loop has ended, it has called `_end` itself
        self._ended.wait()
        self._client.connection.not_at_end(self._end)
        self.callbacks.close(_JOIN_S)  # with a timeout: a callback may never return
        return self._lost

    def statistics(self) -> ProducerStatistics:
        avoided, handed = self._selector.avoided(time.monotonic()), len(self._handed)
        return self._accumulator.counters.snapshot((self._messages + handed, self.used_bytes), avoided)

    @property
    def used_bytes(self) -> int:
        """Bytes of messages without an outcome."""
        return self._bytes + self._handed_bytes

    @property
    def has_sent(self) -> bool:
        """False until the first message."""
        return self._wake != self._first_wake

    # ---- on the event loop ----------------------------------------------------------------------

    async def flush(self, until: float, timeout_s: float | None) -> int:
        """Wait for the outcomes of all messages that were accepted up to a time; return how many have none in time."""
        self._take_in()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                while any(self._accumulator.unfinished(until)):
                    self._completed.clear()
                    await self._completed.wait()
        return sum(batch.count or len(batch.messages) for batch in self._accumulator.unfinished(until))

    def _take_in(self) -> None:
        self._takes += 1
        with self._lock:
            handed, self._handed = self._handed, deque()
            self._bytes += sum(map(_memory_of, handed))
            self._handed_bytes = 0
        number, now = len(handed), time.monotonic()
        for item in handed:
            if isinstance(item, PendingRecords):
                item.is_taken = True
                self._messages += item.count
                self._accumulator.add_batch(item)
            else:
                self._messages += 1
                self._accumulator.add_message(item, now, is_lone=number == 1)
        if self._waiting:
            self._drain()
        if self._timer is None and number:
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _take_back(self, batch: PendingRecords, error: MinimqError) -> None:
        self._take_in()
        if batch.is_taken:
            return
        self._accumulator.finish(batch)
        self.release(batch.memory)
        for call in batch.complete(error):
            self.callbacks.run(call)

    def _drain(self) -> None:
        while self._accumulator.drain(time.monotonic()):
            pass

    # ---- carrying out the accumulator's decisions (`BatchSink`) ------------------------------------

    def find_route(self, topic: str, *, is_gone: bool) -> None:
        """Refresh the route of a topic in the background; drop the known one first if the topic is gone."""
        if is_gone:
            self._routes.forget(topic)
        self._routes.refresh_soon(topic)

    def transmit(self, batch: PendingBatch) -> None:
        """Encode a batch unless an earlier attempt did, and send it to its target."""
        if batch.data is None:
            assert batch.number is not None
            try:
                if batch.count == 1 and self._can_encode_single and batch.message_group is None:
                    [item] = batch.messages
                    batch.data = encode_single(
                        item.message, self._options.max_body_bytes, item.born_ms, self._producer_id, *batch.number
                    )
                if batch.data is None:
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
            stream.append(queue, batch.data, answer, batch.hold, key_queues)
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
                assert batch.number is not None
                receipt = BatchReceipt(
                    queue,
                    result.base_offset,
                    result.store_timestamp_ms,
                    batch.count,
                    self._producer_id,
                    batch.number.sequence,
                    STATUSES[result.status],
                    batch.hold.held(queue, result) if batch.hold is not None else None,
                )
                if self._accumulator.acknowledged(batch, attempt, receipt, time.monotonic()):
                    if self._outages:
                        self._answers(target)
                    self.complete(batch, receipt)
        except Exception as fault:  # a bug of this client: the batch must fail, or its senders wait forever
            log.exception("producer: processing an answer failed topic=%s", batch.topic)
            reason = InternalError(f"the producer failed to process an answer: {fault!r}")
            self._accumulator.give_up(batch, reason)
        if self._waiting:
            self._drain()

    def _answers(self, target: Target) -> None:
        name = target.queue.broker_name
        if (outage := self._outages.pop(name, None)) is not None:
            outage.worked("producer: broker answers broker=%s address=%s", name, target.address)

    def _failed(self, batch: PendingBatch, attempt: int, error: MinimqError) -> None:
        target = batch.target  # read before `failed`, after which a new attempt may have another target
        if self._accumulator.failed(batch, attempt, error, time.monotonic()) and target is not None:
            self.not_stored(target, error)

    def not_stored(self, target: Target, error: MinimqError) -> None:
        queue, address = target
        if not error.answered:
            outage = self._outages.setdefault(queue.broker_name, RetryLog(log))
            text = "producer: broker does not answer broker=%s address=%s reason=%s"
            outage.failed(text, queue.broker_name, address, error, cause=error)

    def complete(self, batch: PendingBatch, outcome: BatchReceipt | MinimqError) -> None:
        """Deliver the outcome of a batch to its senders, and release its room."""
        self._messages -= batch.count
        with self._lock:  # like `release`; before the outcome: a sender may send its next message at once
            self._bytes -= batch.memory
            freed, self._freed = self._freed, None
        if freed is not None:
            freed.set_result(None)
        calls = batch.complete(outcome)
        if calls:
            with self._lock:
                self._bytes += batch.memory  # pending callbacks count against the buffer
            for call in calls:
                self.callbacks.run(call)
            self.callbacks.run(partial(self.release, batch.memory))
        self._completed.set()

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
            self._timer = asyncio.get_running_loop().call_later(_TICK_S, self._tick)

    def _end(self) -> None:
        """Fail the remaining batches and close the streams, when the producer closes or its loop ends."""
        counters = self._accumulator.counters
        try:
            self.reject()
            self._take_in()
            failed, in_doubt = counters.failed, counters.in_doubt
            self._accumulator.close()
            if counters.failed > failed:
                self._lost = (counters.failed - failed, counters.in_doubt - in_doubt)
            self._streams.close()
            if self._timer is not None:
                self._timer.cancel()
        finally:
            self._ended.set()
