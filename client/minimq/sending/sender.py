"""The part of sending that does I/O: it tells the `RecordAccumulator` what happens, and carries out what that decides.

There is no sending thread. Whoever hands something in sends it if the window has room; otherwise it goes out when an
answer makes room, on the event loop that brings the answer, together with all that has gathered meanwhile. So a lone
message leaves at once, and a flood travels in large batches. Time is kept on the event loop as well, and only while
something is on its way. Code of users is called on a thread of its own.
"""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from functools import partial

from minimq.connection.client import RouteCache
from minimq.connection.connection import Connection
from minimq.sending.append_stream import AppendStream
from minimq.sending.append_streams import AppendStreams
from minimq.sending.batch_encoder import BatchEncoder
from minimq.sending.broker_outages import BrokerOutages
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.decisions import Transaction
from minimq.sending.due_times import DueTime
from minimq.sending.fault_probe import FaultProbe
from minimq.sending.pending_batch import (
    BufferShare,
    Completion,
    PendingBatch,
    PendingMessage,
    Records,
    RecordsBatch,
    Target,
)
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.record_accumulator import Abandon, Action, Complete, FindRoute, RecordAccumulator, Send
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics
from minimq.transport.client_log import client_logger
from minimq_common.allocator import keep_freed_memory
from minimq_common.errors import InternalError, InvalidArgument, MiniMQError, SendFailed, Unavailable
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)
client_logger("minimq.sending.pending_batch")

#: How often late tries are looked for.
_TICK_S = 0.1
#: How long the end of the callbacks is waited for.
_JOIN_S = 5.0
_STATUS = {status.value: status for status in SendStatus}


class Sender:
    """Sends batches and messages. Thread-safe."""

    def __init__(self, routes: RouteCache, connection: Connection, options: ProducerOptions) -> None:
        keep_freed_memory()  # batches of 1 MiB pass through
        self._routes = routes
        self._connection = connection
        self._encoder = BatchEncoder(options)
        #: Protects the accumulator and the buffer. Never held while a batch is encoded or completed.
        self._lock = threading.Lock()
        self.buffer = SendBuffer(options.buffer_bytes, block_when_full=options.block_when_full, lock=self._lock)
        self._accumulator = RecordAccumulator(QueueSelector(routes, options, random.Random()), options)
        self._streams = AppendStreams(connection)
        self._outages = BrokerOutages()
        self._closed = False
        #: What is still to be failed because the producer closes.
        self._left: deque[Action] = deque()
        self.callbacks = CallbackThread("minimq-producer-callbacks")
        #: The loop looks at what is late. Set under the lock, after the loop was woken: Ctrl-C may come in between.
        self._keeps_time = False
        self._timer: asyncio.Task[None] | None = None  # of the loop
        self._probe = FaultProbe(connection, self._to_probe, self._probed, options.probe_interval_s)

    # ---- handing in -----------------------------------------------------------------------------

    def send_message(self, item: PendingMessage, *, wait: bool = True) -> bool:
        """Send a checked message; return False when there is no room for it and the caller does not wait."""
        thread = threading.get_ident()
        try:
            with self._lock:
                ticket = self.buffer.reserve_locked(item.message.topic, 1, item.memory, wait=wait)
                if ticket is None:
                    return False
                try:
                    item.ticket = ticket
                    item.born_ms = time.time_ns() // 1_000_000
                    item.handed_in = now = time.monotonic()
                    if not self._keeps_time:
                        self._keep_time_locked()
                    if self._accumulator.join(item):
                        return True
                    batch = self._accumulator.add_message(item, now, thread)
                except BaseException:  # the producer was closed, or Ctrl-C
                    self._accumulator.repair(thread)
                    if not self._accumulator.has_message(item):
                        self.buffer.release_locked((ticket,), item.memory)
                    raise
            if batch is not None:
                self._transmit(batch)
            if batch is None or self._accumulator.is_waiting:
                self._drain()
        except MiniMQError:
            raise
        except BaseException:  # Ctrl-C
            self._hand_over(thread)
            raise
        return True

    def send_batch(  # noqa: PLR0913 - each is a fact of its own
        self,
        topic: str,
        queue: MessageQueue | None,
        records: Records,
        share: BufferShare,
        completion: Completion,
        *,
        transaction: Transaction | None = None,
        message_group: str | None = None,
        due: DueTime | None = None,
        traceparent: str = "",
    ) -> None:
        """Send the records of one topic, which have a share of the buffer, as one batch."""
        thread = threading.get_ident()
        number = batch = None
        try:
            with self._lock:
                number = self._accumulator.new_number()
            batch = RecordsBatch(
                topic,
                queue,
                data=self._encoder.encode_records(records, time.time_ns() // 1_000_000, number),
                count=len(records),
                share=share,
                number=number,
                handed_in=time.monotonic(),
                completion=completion,
                transaction=transaction,
                message_group=message_group,
                due=due,
                traceparent=traceparent,
            )
            with self._lock:
                if not self._keeps_time:
                    self._keep_time_locked()
                actions = self._accumulator.add_batch(batch)
            self._carry_out(actions)
            self._drain()
        except BaseException:  # the records make none, or Ctrl-C
            self._hand_over(thread)
            with self._lock:
                is_added = batch is not None and (batch.done or self._accumulator.has_batch(batch))
                if number is not None and not is_added:
                    self._accumulator.close_number(number)
            if not is_added:
                self.buffer.release(*share)
                completion(None, None)
            raise

    def _hand_over(self, thread: int) -> None:
        with self._lock:
            self._accumulator.repair(thread)
        self._connection.call_soon(self._drain)

    def close(self) -> None:
        """End all streams, fail what is left, and end the callbacks. A call that was interrupted can be made again."""
        with self._lock:
            self._closed = True
        self._fail_left()
        self._streams.close()
        self._connection.call_soon(self._probe.end)
        self.callbacks.close(_JOIN_S)  # one may never end

    def _fail_left(self) -> None:
        with self._lock:
            self._left += self._accumulator.close()
        with suppress(IndexError):  # none is left, or another thread has taken the last one
            while True:
                self._carry_out((self._left.popleft(),))

    # ---- brokers to avoid -----------------------------------------------------------------------

    def _to_probe(self) -> Mapping[str, str] | None:
        with self._lock:
            return None if self._closed else self._accumulator.to_probe(time.monotonic())

    def _probed(self, broker: str, reached: bool) -> None:
        with self._lock:
            self._accumulator.probed(broker, time.monotonic(), reached=reached)
        if reached:
            self._drain()

    def statistics(self) -> ProducerStatistics:
        """Return what was done so far."""
        with self._lock:
            return self._accumulator.statistics((self.buffer.messages, self.buffer.bytes), time.monotonic())

    # ---- carrying out ---------------------------------------------------------------------------

    def _drain(self) -> None:
        thread = threading.get_ident()
        while True:
            with self._lock:
                actions = self._accumulator.drain(time.monotonic(), thread)
            if actions is None:
                return
            self._carry_out(actions)

    def _carry_out(self, actions: Iterable[Action]) -> None:
        for action in actions:
            match action:
                case Send(batch):
                    self._transmit(batch)
                case Complete(batch, receipt, error):
                    self._complete(batch, receipt, error)
                case FindRoute(topic, is_gone):
                    if is_gone:
                        self._routes.forget(topic)
                    self._routes.refresh_soon(topic)
                case Abandon():
                    self._abandon(action)

    def _transmit(self, batch: PendingBatch) -> None:
        try:
            if batch.data is None and not self._encode(batch):
                return
            error = self._append(batch)
        except Exception as fault:  # such as that of a signal handler: nobody else knows of what has left its queue
            self._drop(batch, SendFailed(f"the send was interrupted: {fault!r}"))
            raise
        if error is not None:
            self._failed(batch, batch.attempts, error)

    def _encode(self, batch: PendingBatch) -> bool:
        try:
            assert batch.number is not None
            batch.data = self._encoder.encode_messages(batch.messages, batch.message_group, batch.number)
        except Exception as error:  # noqa: BLE001 - a changed message can fail in any way
            # Each was checked when it was handed in, so one was changed since.
            text = error.message if isinstance(error, MiniMQError) else repr(error)
            reason = f"a message, or one that was to travel with it, was changed after it had been handed in: {text}"
            self._drop(batch, InvalidArgument(reason))
            return False
        return True

    def _drop(self, batch: PendingBatch, error: MiniMQError) -> None:
        with self._lock:
            actions = self._accumulator.unsendable(batch, error)
        self._carry_out(actions)

    def _append(self, batch: PendingBatch) -> MiniMQError | None:
        assert batch.target is not None
        assert batch.data is not None
        queue, address = batch.target
        answer = partial(self._answered, batch, batch.attempts)
        with self._lock:
            if not self._accumulator.begin_try(batch, time.monotonic()):
                return None
        try:
            batch.stream = stream = self._streams.to(address)
            route = self._routes.known(batch.topic)
            key_queues = route.key_queues if route else 0
            stream.append(queue, batch.data, answer, batch.transaction, batch.due, key_queues, batch.traceparent)
        except MiniMQError as error:
            return error
        except RuntimeError as error:  # no thread can be started
            return Unavailable(f"no stream to broker {address}: {error}")
        return None

    def _abandon(self, action: Abandon) -> None:
        self._not_stored(action.target, action.error)
        address = action.target.address
        assert isinstance(action.stream, AppendStream)
        self._streams.forget(address, action.stream)
        action.stream.fail(Unavailable(f"broker {address} left an earlier request without an answer"))

    # ---- outcomes -------------------------------------------------------------------------------

    def _answered(
        self, batch: PendingBatch, attempt: int, result: broker_pb2.AppendResult | None, error: MiniMQError | None
    ) -> None:
        try:
            if result is not None:
                self._acknowledged(batch, attempt, result)
            elif error is not None:
                self._failed(batch, attempt, error)
        except Exception as fault:  # a fault of ours: whoever waits for this batch must hear of it all the same
            log.exception("producer: an answer was not taken in topic=%s", batch.topic)
            with self._lock:
                reason = InternalError(f"the producer failed over an answer: {fault!r}")
                actions = self._accumulator.give_up(batch, reason)
            self._carry_out(actions)
        if self._accumulator.is_waiting:
            self._drain()

    def _acknowledged(self, batch: PendingBatch, attempt: int, result: broker_pb2.AppendResult) -> None:
        assert batch.target is not None
        assert batch.number is not None
        queue, address = batch.target
        if result.queue_id != queue.queue_id:  # an earlier try had stored it there
            queue = MessageQueue(queue.topic, queue.broker_name, result.queue_id)
        receipt = BatchReceipt(
            queue,
            result.base_offset,
            result.store_timestamp_ms,
            batch.count,
            self._encoder.producer_id,
            batch.number.sequence,
            _STATUS.get(result.status, SendStatus.SEND_OK),  # whatever a newer broker says of it, it is stored
            result.due_ms,
            result.recall_id if batch.due_bucket is not None and batch.due_bucket.alone else None,
        )
        with self._lock:
            actions = self._accumulator.acknowledged(batch, attempt, receipt, time.monotonic())
        if actions is not None:
            self._outages.answered(queue.broker_name, address)
            self._carry_out(actions)

    def _failed(self, batch: PendingBatch, attempt: int, error: MiniMQError) -> None:
        assert batch.target is not None
        with self._lock:
            actions = self._accumulator.failed(batch, attempt, error, time.monotonic())
        if actions is not None:
            self._not_stored(batch.target, error)
            self._carry_out(actions)

    def _not_stored(self, target: Target, error: MiniMQError) -> None:
        queue, address = target
        self._outages.failed(queue.broker_name, address, error)
        if error.avoid_broker and not error.answered:
            self._connection.call_soon(self._probe.begin)

    def _complete(self, batch: PendingBatch, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        calls = None
        try:
            calls = batch.complete(receipt, error)
        except Exception:
            log.exception("producer: an outcome was not taken in topic=%s", batch.topic)
        finally:
            if calls:
                for call in calls:
                    self.callbacks.run(call)
                self.callbacks.run(partial(self.buffer.release, *batch.share))
            else:
                self.buffer.release(*batch.share)

    # ---- time -----------------------------------------------------------------------------------

    def _keep_time_locked(self) -> None:
        self._connection.call_soon(self._keep_time)
        self._keeps_time = True

    def _keep_time(self) -> None:
        if self._timer is None:
            self._timer = asyncio.create_task(self._look_at_times())
            self._timer.add_done_callback(self._time_ended)  # which comes also if the loop ends before the first step

    async def _look_at_times(self) -> None:
        goes_on = True
        try:
            while goes_on:
                await asyncio.sleep(_TICK_S)
                try:
                    goes_on = self._tick(time.monotonic())
                except Exception:
                    log.exception("producer: a look at what is late failed")
        finally:
            self._timer = None

    def _time_ended(self, timer: asyncio.Task[None]) -> None:
        if timer.cancelled():  # the connection was closed ahead of the producer: nobody would look any more
            self._fail_left()

    def _tick(self, now: float) -> bool:
        with self._lock:
            if self._closed or self._accumulator.is_empty:
                self._keeps_time = False
                return False
            actions = self._accumulator.time_passed(now) if now >= self._accumulator.wake_at else ()
        self._streams.wake()
        self._carry_out(actions)
        if self._accumulator.is_waiting:
            self._drain()
        return True
