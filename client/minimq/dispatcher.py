"""The core of sending: coalesces, chooses queues, keeps a window to each broker, and tries again.

There is no sending thread. Whoever hands something in sends it if the window has room; otherwise it goes out when an
answer makes room, by the thread that brought the answer, together with all that has gathered meanwhile. So a lone
message leaves at once, and a flood travels in large batches.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import random
import threading
import time
from collections import deque
from concurrent.futures import Future
from dataclasses import dataclass
from typing import NamedTuple

from minimq.append_stream import AppendStream
from minimq.broker_link import BrokerLinks
from minimq.options import ProducerOptions
from minimq.outgoing import Completion, Lane, OutgoingBatch, PendingMessage, describe_try
from minimq.placement import BUSY, Place, Placement
from minimq.receipt import BatchReceipt, SendReceipt
from minimq.routing import RouteCache
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import (
    BufferFull,
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    MiniMQError,
    SendFailed,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Each try gets a share of the time that is left, so that one hung broker does not eat all of it.
_TRIES_TO_FIT = 3
#: A try is given at least this long, however little of the budget is left.
_SHORTEST_TRY_S = 0.2
#: Waits before the second, third, ... try: the first goes elsewhere at once.
_BACKOFF_S = (0.0, 0.1, 0.3, 1.0)
#: How often late tries are looked for.
_TICK_S = 0.1


class _LineKey(NamedTuple):
    topic: str
    queue: MessageQueue | None
    avoid: str | None


@dataclass(slots=True, eq=False)
class _Flight:
    """One try that is under way."""

    batch: OutgoingBatch
    queue: MessageQueue
    address: str
    began: float
    deadline: float
    stream: AppendStream | None = None


class Dispatcher:
    """Sends batches and messages. Thread-safe.

    Args:
        routes: where the queues are.
        links: connections to brokers.
        options: of the producer.
    """

    def __init__(self, routes: RouteCache, links: BrokerLinks, options: ProducerOptions) -> None:
        self._routes = routes
        self._links = links
        self._options = options
        self.producer_id = random.getrandbits(64)
        self._sequence = itertools.count()
        #: Protects everything below. Never held while a batch is encoded or a future completed.
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._lanes: dict[tuple[str, MessageQueue | None], Lane] = {}
        #: Sealed batches in line, by all that decides whether there is a place for them.
        self._backlog: dict[_LineKey, deque[OutgoingBatch]] = {}
        self._delayed: list[tuple[float, int, OutgoingBatch]] = []
        self._flights: set[_Flight] = set()
        self._placement = Placement(routes, options.window)
        self._streams: dict[str, AppendStream] = {}
        self._buffered_bytes = 0
        self._unfinished = 0
        self._closed = False
        self._stop = threading.Event()
        self._timer = threading.Thread(target=self._keep_time, name="minimq-producer-timer", daemon=True)
        self._timer.start()

    # ---- handing in -----------------------------------------------------------------------------

    def reserve(self, count: int, size: int) -> None:
        """Take room in the buffer for `count` messages of together `size` bytes; given back at completion.

        Raises:
            BufferFull: there is none, and the option `block_when_full` is off.
            Closed: the producer was closed.
        """
        with self._room:
            while self._buffered_bytes and self._buffered_bytes + size > self._options.buffer_bytes:
                if self._closed:
                    break
                if not self._options.block_when_full:
                    raise BufferFull(
                        f"{self._buffered_bytes} bytes wait to be sent, the limit is {self._options.buffer_bytes}: "
                        "send more slowly, raise buffer_bytes, or set block_when_full"
                    )
                self._room.wait()
            if self._closed:
                raise Closed("the producer is closed")
            self._buffered_bytes += size
            self._unfinished += count

    def send_message(self, message: Message, queue: MessageQueue | None, size: int) -> Future[SendReceipt]:
        """Send one checked message for which `reserve` was called."""
        item = PendingMessage(message, Future(), time.time_ns() // 1_000_000, size)
        with self._lock:
            lane = self._lanes.get((message.topic, queue))
            if lane is None:
                lane = self._lanes[message.topic, queue] = Lane(message.topic, queue)
            lane.pending.append(item)
        self._pump()
        return item.future

    def send_batch(
        self, topic: str, queue: MessageQueue | None, records: BatchBuilder, size: int, complete: Completion
    ) -> None:
        """Send the records of one topic as one batch, for which `reserve` was called. Raises `InvalidArgument`."""
        try:
            outgoing = self._encode(topic, queue, records, time.time_ns() // 1_000_000, size, complete)
        except Exception:
            self._release(len(records), size)
            raise
        with self._lock:
            self._line_of(outgoing).append(outgoing)
        self._pump()

    def flush(self, timeout_s: float | None) -> int:
        """Wait until all that was handed in is acknowledged or has failed; return how many messages are not."""
        with self._room:
            self._room.wait_for(lambda: self._unfinished == 0, timeout_s)
            return self._unfinished

    def close(self, timeout_s: float) -> int:
        """Flush, end all threads and streams, fail what is left; return how many messages that were. Idempotent."""
        left = self.flush(timeout_s)
        with self._room:
            self._closed = True
            streams = list(self._streams.values())
            self._room.notify_all()
        self._stop.set()
        self._timer.join()
        for stream in streams:
            if left:
                stream.cancel()
            stream.close(1.0)
        self._abandon(Closed("the producer was closed before the message was acknowledged"))
        return left

    # ---- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send whatever has somewhere to go."""
        while True:
            with self._lock:
                work = self._next()
            if work is None:
                return
            what, place = work
            if isinstance(what, OutgoingBatch):
                outgoing = what
            else:
                try:
                    outgoing = self._seal(what)
                except Exception as error:  # noqa: BLE001 - a changed message can fail in any way
                    self._spoiled(what, place, error)
                    continue
            if place is None:
                outgoing.last_broker = outgoing.queue.broker_name if outgoing.queue else None
                self._try_later(outgoing, self._placement.why_nowhere(outgoing.topic, outgoing.queue))
            else:
                self._launch(outgoing, *place)

    def _next(self) -> tuple[OutgoingBatch | Lane, Place | None] | None:
        """Take the next thing to send out of its line, with its place. The caller holds the lock.

        The place is None when no broker takes it. Returns None when everything has to wait.
        """
        for line_key, line in self._backlog.items():
            place = self._placement.take(*line_key)
            if place is not BUSY:
                outgoing = line.popleft()
                if not line:
                    del self._backlog[line_key]
                return outgoing, place
        for key, lane in self._lanes.items():
            place = self._placement.take(lane.topic, lane.queue, None)
            if place is not BUSY:
                del self._lanes[key]
                taken = lane.take(self._options.batch_messages, self._options.batch_bytes)
                if lane.pending:
                    self._lanes[key] = lane  # at the end: each lane gets its turn
                return taken, place
        return None

    def _line_of(self, outgoing: OutgoingBatch) -> deque[OutgoingBatch]:
        return self._backlog.setdefault(_LineKey(outgoing.topic, outgoing.queue, outgoing.last_broker), deque())

    def _encode(
        self,
        topic: str,
        queue: MessageQueue | None,
        records: BatchBuilder,
        born_ms: int | list[int],
        size: int,
        complete: Completion,
    ) -> OutgoingBatch:
        sequence = next(self._sequence)
        data = records.build(born_ms, self.producer_id, sequence)
        return OutgoingBatch(topic, queue, data, len(records), size, sequence, complete)

    def _seal(self, lane: Lane) -> OutgoingBatch:
        """Make a batch of what was taken out of a lane."""
        records = BatchBuilder(self._options.max_body_bytes)
        records.add([item.message for item in lane.pending])
        born_ms = [item.born_ms for item in lane.pending]
        return self._encode(lane.topic, lane.queue, records, born_ms, lane.size, lane.complete)

    def _spoiled(self, lane: Lane, place: Place | None, error: Exception) -> None:
        """Fail messages that make no batch: each was checked when it was handed in, so one was changed since."""
        if place is not None:
            with self._lock:
                self._placement.landed(place.queue)
        text = error.message if isinstance(error, MiniMQError) else repr(error)
        reason = f"a message, or one that was to travel with it, was changed after it had been handed in: {text}"
        self._complete(_unsealed(lane), None, InvalidArgument(reason))

    def _launch(self, outgoing: OutgoingBatch, queue: MessageQueue, address: str) -> None:
        now = time.monotonic()
        if outgoing.deadline is None:
            outgoing.deadline = now + self._options.send_timeout_s
        tries_left = max(_TRIES_TO_FIT - len(outgoing.tries), 1)
        patience = max((outgoing.deadline - now) / tries_left, _SHORTEST_TRY_S)
        outgoing.last_broker = queue.broker_name
        flight = _Flight(outgoing, queue, address, now, now + patience)
        try:
            with self._lock:
                self._flights.add(flight)
                stream = flight.stream = self._stream_to(address)
        except MiniMQError as error:
            self._landed(flight, None, error)
            return
        except (ValueError, RuntimeError) as error:  # the channel was closed just now, or there is no thread to be had
            self._landed(flight, None, Unavailable(f"no stream to broker {address}: {error}"))
            return
        stream.append(queue, outgoing.data, lambda result, error: self._landed(flight, result, error))

    def _stream_to(self, address: str) -> AppendStream:
        stream = self._streams.get(address)
        if stream is None or stream.ended:
            stream = self._streams[address] = AppendStream(self._links.to(address))
        return stream

    # ---- answers --------------------------------------------------------------------------------

    def _landed(self, flight: _Flight, result: broker_pb2.AppendResult | None, error: MiniMQError | None) -> None:
        """Take the outcome of a try; only the first one counts."""
        with self._lock:
            if flight not in self._flights:
                return  # it took too long, and was given up
            self._flights.remove(flight)
            self._placement.landed(flight.queue)
        outgoing = flight.batch
        if result is not None:
            receipt = BatchReceipt(
                flight.queue,
                result.base_offset,
                result.store_timestamp_ms,
                outgoing.count,
                self.producer_id,
                outgoing.sequence,
            )
            self._complete(outgoing, receipt, None)
        elif error is not None:
            where = f"{flight.queue} at {flight.address}"
            outgoing.tries.append(describe_try(len(outgoing.tries) + 1, where, flight.began, error))
            self._try_later(outgoing, error)
        self._pump()

    def _try_later(self, outgoing: OutgoingBatch, error: MiniMQError) -> None:
        """Put a batch in line again, or fail it: when trying again cannot help, or time or tries are used up."""
        now = time.monotonic()
        if outgoing.deadline is None:  # it was never tried: no broker takes it
            outgoing.deadline = now + self._options.send_timeout_s
        # The watch tells of a changed route within milliseconds, so the next try finds it without being asked.
        elsewhere = error.refresh_route and outgoing.queue is None
        number = min(max(len(outgoing.tries), 1), len(_BACKOFF_S)) - 1
        delay = max(_BACKOFF_S[number] if outgoing.tries else _TICK_S, error.retry_after_s)
        hopeless = not (error.retriable or elsewhere)
        if hopeless or now + delay >= outgoing.deadline:
            if len(outgoing.tries) > 1 or not hopeless:
                error = SendFailed(
                    f"{outgoing.count} messages for topic {outgoing.topic!r} were not acknowledged: {error.message}",
                    tuple(outgoing.tries),
                )
            self._complete(outgoing, None, error)
            return
        with self._lock:
            closed = self._closed
            if closed:
                pass  # nobody would bring it back
            elif delay:
                heapq.heappush(self._delayed, (now + delay, outgoing.sequence, outgoing))
            else:
                self._line_of(outgoing).appendleft(outgoing)
        if closed:
            self._complete(outgoing, None, Closed("the producer was closed before the message was acknowledged"))

    def _complete(self, outgoing: OutgoingBatch, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        if outgoing.queue is not None:
            with self._lock:
                self._placement.done(outgoing.queue)
        try:
            outgoing.complete(receipt, error)
        except Exception:
            log.exception("producer: an outcome was not taken in topic=%s", outgoing.topic)
        finally:
            self._release(outgoing.count, outgoing.size)

    def _release(self, count: int, size: int) -> None:
        with self._room:
            self._buffered_bytes -= size
            self._unfinished -= count
            self._room.notify_all()

    def _abandon(self, error: MiniMQError) -> None:
        with self._lock:
            left = [outgoing for line in self._backlog.values() for outgoing in line]
            left += [outgoing for _, _, outgoing in self._delayed]
            left += [flight.batch for flight in self._flights]
            lanes = list(self._lanes.values())
            self._backlog.clear()
            self._delayed.clear()
            self._flights.clear()
            self._lanes.clear()
        for outgoing in left + [_unsealed(lane) for lane in lanes]:
            self._complete(outgoing, None, error)

    def _keep_time(self) -> None:
        while not self._stop.wait(_TICK_S):
            try:
                self._tick(time.monotonic())
            except Exception:
                log.exception("producer: a look at what is late failed")

    def _tick(self, now: float) -> None:
        """Give up tries that take too long, and bring back what waited for its next try."""
        with self._lock:
            late = [flight for flight in self._flights if now >= flight.deadline]
            silent = {flight.stream for flight in late if flight.stream is not None}
            for stream in silent:
                if self._streams.get(stream.address) is stream:
                    del self._streams[stream.address]
            while self._delayed and self._delayed[0][0] <= now:
                outgoing = heapq.heappop(self._delayed)[2]
                self._line_of(outgoing).appendleft(outgoing)
        for flight in late:
            waited = now - flight.began
            self._landed(flight, None, DeadlineExceeded(f"broker {flight.address} did not answer in {waited:.2f} s"))
        # What else is under way there goes elsewhere at once, and nothing waits in memory for a broker that hangs.
        for stream in silent:
            stream.give_up(Unavailable(f"broker {stream.address} left an earlier request without an answer"))
        self._pump()


def _unsealed(lane: Lane) -> OutgoingBatch:
    """Return a batch that will never be sent, to be failed."""
    return OutgoingBatch(lane.topic, lane.queue, b"", len(lane.pending), lane.size, 0, lane.complete)
