"""The core of sending: coalesces, chooses queues, keeps a window to each broker, and tries again.

There is no sending thread. Whoever hands something in sends it if the window has room; otherwise it goes out when an
answer makes room, by the thread that brought the answer, together with all that has gathered meanwhile. So a lone
message leaves at once, and a flood travels in large batches.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

from minimq.routes.routing import RouteCache
from minimq.sending.append_stream import AppendStream
from minimq.sending.batch_numbers import BatchNumbers
from minimq.sending.outgoing import Completion, Lane, Outcome, OutgoingBatch, PendingMessage
from minimq.sending.placement import Place, Placement
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.retry import GiveUp, next_step, patience_s
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics, SendCounters
from minimq.sending.waiting_lines import WaitingLines
from minimq.transport.broker_link import BrokerLinks
from minimq_common.batch_builder import BatchBuilder
from minimq_common.errors import Closed, DeadlineExceeded, InvalidArgument, MiniMQError, SendFailed, Unavailable
from minimq_common.model import Message, MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: How often late tries are looked for.
_TICK_S = 0.1


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
        buffer: what is handed in has room there, and gives it back at its end.
        options: of the producer.
    """

    def __init__(self, routes: RouteCache, links: BrokerLinks, buffer: SendBuffer, options: ProducerOptions) -> None:
        self._routes = routes
        self._links = links
        self._buffer = buffer
        self._options = options
        self.producer_id = random.getrandbits(64) or 1  # 0 stands for a producer that does not number its batches
        #: Protects everything below. Never held while a batch is encoded or an outcome told.
        self._lock = threading.Lock()
        self._numbers = BatchNumbers()
        self._counters = SendCounters()
        self._placement = Placement(routes, options)
        self._waiting = WaitingLines(self._placement, options.batch_messages, options.batch_bytes)
        self._flights: set[_Flight] = set()
        self._streams: dict[str, AppendStream] = {}
        self._closed = False
        self._stop = threading.Event()
        self._timer = threading.Thread(target=self._keep_time, name="minimq-producer-timer", daemon=True)
        self._timer.start()

    # ---- handing in -----------------------------------------------------------------------------

    def send_message(self, message: Message, queue: MessageQueue | None, size: int, outcome: Outcome | None) -> None:
        """Send one checked message that has room in the buffer."""
        item = PendingMessage(message, outcome, time.time_ns() // 1_000_000, time.monotonic(), size)
        with self._lock:
            self._waiting.add_message(message.topic, queue, item)
        self._pump()

    def send_batch(
        self, topic: str, queue: MessageQueue | None, records: BatchBuilder, size: int, complete: Completion
    ) -> None:
        """Send the records of one topic, which have room in the buffer, as one batch. Raises `InvalidArgument`."""
        try:
            data, sequence = self._encode(records, time.time_ns() // 1_000_000)
        except Exception:
            self._buffer.release(len(records), size)
            raise
        outgoing = OutgoingBatch(
            topic,
            queue,
            data=data,
            count=len(records),
            size=size,
            sequence=sequence,
            handed_in=time.monotonic(),
            complete=complete,
        )
        with self._lock:
            self._waiting.add_batch(outgoing)
        self._pump()

    def close(self) -> Counter[str]:
        """End all threads and streams, fail what is left; return how many messages that were, by topic."""
        with self._lock:
            self._closed = True
            streams = list(self._streams.values())
        self._stop.set()
        self._timer.join()
        left = self._abandon(Closed("the producer was closed before the message was acknowledged"))
        for stream in streams:
            if left:
                stream.cancel()
            stream.close(1.0)
        return left

    # ---- brokers to avoid -----------------------------------------------------------------------

    def to_probe(self) -> Mapping[str, str]:
        """Return the addresses of brokers that are left out because they were not reached, by name."""
        with self._lock:
            return self._placement.to_probe(time.monotonic())

    def probed(self, broker: str, reached: bool) -> None:
        """Take in whether such a broker answers now."""
        with self._lock:
            self._placement.probed(broker, time.monotonic(), reached=reached)
        if reached:
            self._pump()

    def statistics(self) -> ProducerStatistics:
        """Return what was done so far."""
        with self._lock:
            avoided = tuple(self._placement.avoided(time.monotonic()))
            return self._counters.snapshot((self._buffer.messages, self._buffer.bytes), avoided)

    # ---- sending --------------------------------------------------------------------------------

    def _pump(self) -> None:
        """Send whatever has somewhere to go."""
        while True:
            with self._lock:
                work = self._waiting.next(time.monotonic())
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

    def _encode(self, records: BatchBuilder, born_ms: int | list[int]) -> tuple[bytes, int]:
        """Return records as a batch, and its sequence number."""
        with self._lock:
            number = self._numbers.begin()
        try:
            return records.build(born_ms, self.producer_id, *number), number.sequence
        except Exception:
            with self._lock:
                self._numbers.settle(number.sequence)
            raise

    def _seal(self, lane: Lane) -> OutgoingBatch:
        """Make a batch of what was taken out of a lane."""
        records = BatchBuilder(self._options.max_body_bytes, self._options.batch_compression)
        records.add([item.message for item in lane.pending])
        return lane.sealed(*self._encode(records, [item.born_ms for item in lane.pending]))

    def _spoiled(self, lane: Lane, place: Place | None, error: Exception) -> None:
        """Fail messages that make no batch: each was checked when it was handed in, so one was changed since."""
        if place is not None:
            with self._lock:
                self._placement.landed(place.queue)
        text = error.message if isinstance(error, MiniMQError) else repr(error)
        reason = f"a message, or one that was to travel with it, was changed after it had been handed in: {text}"
        self._complete(lane.sealed(b"", -1), None, InvalidArgument(reason))

    def _launch(self, outgoing: OutgoingBatch, queue: MessageQueue, address: str) -> None:
        now = time.monotonic()
        if outgoing.deadline is None:
            outgoing.deadline = now + self._options.send_timeout_s
        outgoing.last_broker = queue.broker_name
        late_at = now + patience_s(now, outgoing.deadline, len(outgoing.tries))
        flight = _Flight(outgoing, queue, address, now, late_at)
        try:
            with self._lock:
                self._flights.add(flight)
                stream = flight.stream = self._stream_to(address)
        except MiniMQError as error:
            self._failed(flight, error)
            return
        except (ValueError, RuntimeError) as error:  # the channel was closed just now, or there is no thread to be had
            self._failed(flight, Unavailable(f"no stream to broker {address}: {error}"))
            return
        stream.append(queue, outgoing.data, partial(self._answered, flight))

    def _stream_to(self, address: str) -> AppendStream:
        stream = self._streams.get(address)
        if stream is None or stream.ended:
            stream = self._streams[address] = AppendStream(self._links.to(address))
        return stream

    # ---- outcomes of tries ----------------------------------------------------------------------

    def _landed(self, flight: _Flight) -> bool:
        """Take a try out of the air; False when that was done before: only the first outcome counts. Needs the lock."""
        if flight not in self._flights:
            return False  # it took too long, and was given up
        self._flights.remove(flight)
        self._placement.landed(flight.queue)
        return True

    def _answered(self, flight: _Flight, result: broker_pb2.AppendResult | None, error: MiniMQError | None) -> None:
        if result is not None:
            self._acknowledged(flight, result)
        elif error is not None:
            self._failed(flight, error)

    def _acknowledged(self, flight: _Flight, result: broker_pb2.AppendResult) -> None:
        now = time.monotonic()
        outgoing, queue = flight.batch, flight.queue
        status = SendStatus(result.status)
        with self._lock:
            if not self._landed(flight):
                return
            self._placement.answered(queue.broker_name, now - flight.began, now)
            self._counters.acknowledged(
                outgoing.count,
                len(outgoing.data),
                now - outgoing.handed_in,
                already_stored=status is SendStatus.ALREADY_STORED,
            )
        if result.queue_id != queue.queue_id:  # an earlier try had stored it there
            queue = MessageQueue(queue.topic, queue.broker_name, result.queue_id)
        receipt = BatchReceipt(
            queue,
            result.base_offset,
            result.store_timestamp_ms,
            outgoing.count,
            self.producer_id,
            outgoing.sequence,
            status,
        )
        self._complete(outgoing, receipt, None)
        self._pump()

    def _failed(self, flight: _Flight, error: MiniMQError) -> None:
        now = time.monotonic()
        outgoing = flight.batch
        with self._lock:
            if not self._landed(flight):
                return
            self._placement.failed(flight.queue.broker_name, error, now)
        where = f"{flight.queue} at {flight.address}"
        outgoing.tries.append(
            f"try {len(outgoing.tries) + 1}: {where}, failed after {now - flight.began:.3f} s: {error.message}"
        )
        self._try_later(outgoing, error)
        self._pump()

    def _try_later(self, outgoing: OutgoingBatch, error: MiniMQError) -> None:
        """Put a batch in line again, or fail it: when trying again cannot help, or time is used up."""
        now = time.monotonic()
        if outgoing.deadline is None:  # it was never tried: no broker takes it
            outgoing.deadline = now + self._options.send_timeout_s
        with self._lock:
            elsewhere = self._placement.has_other(outgoing.topic, outgoing.last_broker, now)
            closed = self._closed
        step = next_step(
            error,
            tries=len(outgoing.tries),
            now=now,
            deadline=outgoing.deadline,
            bound=outgoing.queue is not None,
            elsewhere=elsewhere,
        )
        if closed:  # nobody would bring it back
            self._complete(outgoing, None, Closed("the producer was closed before the message was acknowledged"))
        elif isinstance(step, GiveUp):
            self._complete(outgoing, None, self._final(outgoing, error))
        else:
            if step.refresh_route:
                self._routes.refresh_soon(outgoing.topic)
            with self._lock:
                if outgoing.tries:
                    self._counters.retried()
                self._waiting.try_again(outgoing, now + step.delay_s if step.delay_s else None)

    def _final(self, outgoing: OutgoingBatch, error: MiniMQError) -> MiniMQError:
        """Return what the sender is told of the last error: itself when there was but one try, and no use in others."""
        if len(outgoing.tries) <= 1 and not error.retriable:
            return error
        return SendFailed(
            f"{outgoing.count} messages for topic {outgoing.topic!r} were not acknowledged: {error.message}",
            tuple(outgoing.tries),
        )

    def _complete(self, outgoing: OutgoingBatch, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        with self._lock:
            self._numbers.settle(outgoing.sequence)
            if error is not None:
                self._counters.failed(outgoing.count)
            if outgoing.queue is not None:
                self._placement.done(outgoing.queue)
        try:
            outgoing.complete(receipt, error)
        except Exception:
            log.exception("producer: an outcome was not taken in topic=%s", outgoing.topic)
        finally:
            self._buffer.release(outgoing.count, outgoing.size)

    def _abandon(self, error: MiniMQError) -> Counter[str]:
        with self._lock:
            left = self._waiting.clear() + [flight.batch for flight in self._flights]
            self._flights.clear()
        counts: Counter[str] = Counter()
        for what in left:
            outgoing = what.sealed(b"", -1) if isinstance(what, Lane) else what
            counts[outgoing.topic] += outgoing.count
            self._complete(outgoing, None, error)
        return counts

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
            self._waiting.due(now)
        for flight in late:
            waited = now - flight.began
            self._failed(flight, DeadlineExceeded(f"broker {flight.address} did not answer in {waited:.2f} s"))
        # What else is under way there goes elsewhere at once, and nothing waits in memory for a broker that hangs.
        for stream in silent:
            stream.give_up(Unavailable(f"broker {stream.address} left an earlier request without an answer"))
        self._pump()
