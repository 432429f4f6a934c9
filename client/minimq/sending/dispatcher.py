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
from collections.abc import Mapping
from functools import partial

from minimq.connection.client import RouteCache
from minimq.sending.broker_outages import BrokerOutages
from minimq.sending.decisions import Transaction
from minimq.sending.flights import Flight, Flights
from minimq.sending.outgoing import (
    Completion,
    Direction,
    InBuffer,
    Lane,
    Outcome,
    OutgoingBatch,
    PendingMessage,
    Records,
)
from minimq.sending.placement import Placement
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.retry import GiveUp, TryAgain, next_step, patience_s
from minimq.sending.sealer import Sealer
from minimq.sending.send_buffer import SendBuffer
from minimq.sending.statistics import ProducerStatistics, SendCounters
from minimq.sending.waiting_lines import Departure, WaitingLines
from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InternalError,
    InvalidArgument,
    MiniMQError,
    SendFailed,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import Message, MessageQueue
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: How often late tries are looked for.
_TICK_S = 0.1
#: How long the end of the timer is waited for.
_JOIN_S = 5.0
#: How often a topic that vanished is looked for, a tenth of a second apart.
_LOOKUPS = 5
_STATUS = {status.value: status for status in SendStatus}


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
        self._buffer = buffer
        self._options = options
        self._sealer = Sealer(options)
        #: Protects everything below. Never held while a batch is encoded or an outcome told.
        self._lock = threading.Lock()
        self._counters = SendCounters()
        self._placement = Placement(routes, options, random.Random())
        self._waiting = WaitingLines(
            self._placement, options.batch_messages, options.batch_bytes, options.spread_messages
        )
        self._flights = Flights(links)
        #: When something was last acknowledged, by direction.
        self._progress: dict[Direction, float] = {}
        self._outages = BrokerOutages()
        self._closed = False
        #: What is to be failed because the producer closes.
        self._left: list[OutgoingBatch | Lane] = []
        self._stop = threading.Event()
        self._timer = threading.Thread(target=self._keep_time, name="minimq-producer-timer", daemon=True)
        self._timer.start()

    # ---- handing in -----------------------------------------------------------------------------

    def send_message(
        self, message: Message, queue: MessageQueue | None, room: InBuffer, outcome: Outcome | None
    ) -> None:
        """Send one checked message that has room in the buffer."""
        [ticket] = room.tickets
        item = PendingMessage(message, outcome, time.time_ns() // 1_000_000, time.monotonic(), room.size, ticket)
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting.add_message(message.topic, queue, item)
        if closed:
            lane = Lane(message.topic, queue)
            lane.pending.append(item)
            self._complete(lane.unsealed(), None, _closed())
        self._pump()

    def send_batch(
        self,
        topic: str,
        queue: MessageQueue | None,
        records: Records,
        room: InBuffer,
        complete: Completion,
        transaction: Transaction | None = None,
    ) -> None:
        """Send the records of one topic, which have room in the buffer, as one batch.

        Raises:
            InvalidArgument: they make none; `complete` has been called without an outcome.
        """
        try:
            data, sequence = self._sealer.encode(records, time.time_ns() // 1_000_000)
        except BaseException:
            self._buffer.release(*room)
            complete(None, None)
            raise
        outgoing = OutgoingBatch(
            topic,
            queue,
            data=data,
            count=len(records),
            in_buffer=room,
            sequence=sequence,
            handed_in=time.monotonic(),
            complete=complete,
            transaction=transaction,
        )
        with self._lock:
            closed = self._closed
            if not closed:
                self._waiting.add_batch(outgoing)
        if closed:
            self._complete(outgoing, None, _closed())
        self._pump()

    def close(self) -> None:
        """End all threads and streams, and fail what is left. A call that was interrupted can be made again."""
        with self._lock:
            self._closed = True
        self._stop.set()
        if threading.current_thread() is not self._timer:
            self._timer.join(_JOIN_S)  # it may be in a callback that waits for this very call
        with self._lock:
            self._left += self._waiting.clear()
            self._left += self._flights.clear()
            streams = self._flights.streams()
        failed = bool(self._left)
        while self._left:
            self._complete(_unsent(self._left[-1]), None, _closed())
            self._left.pop()
        for stream in streams:
            if failed:
                stream.cancel()
            stream.close(1.0)

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
                departure = self._waiting.next(time.monotonic())
            if departure is None:
                return
            outgoing: OutgoingBatch | None = None
            try:
                outgoing = self._sealed(departure)
                if outgoing is not None:
                    self._depart(outgoing, departure)
            except BaseException as interrupt:
                self._lost(outgoing or _unsent(departure.what), departure, interrupt)
                raise

    def _depart(self, outgoing: OutgoingBatch, departure: Departure) -> None:
        if outgoing.deadline is None:
            outgoing.deadline = time.monotonic() + self._options.send_timeout_s
        if departure.place is not None:
            self._launch(outgoing, *departure.place)
        elif departure.reason is not None:
            # A broker said that the topic is gone, and name servers had the time to say where else it is.
            outgoing.lookups += self._routes.known(outgoing.topic) is None
            if outgoing.lookups > _LOOKUPS:
                self._give_up(outgoing, departure.reason, hopeless=True)
            else:
                self._try_later(outgoing, departure.reason, tried=False)

    def _lost(self, outgoing: OutgoingBatch, departure: Departure, interrupt: BaseException) -> None:
        """Fail what had left its line when Ctrl-C came, unless it is on its way: nobody else knows of it."""
        with self._lock:
            under_way = self._flights.carry(outgoing)
            if not under_way and departure.place is not None and not outgoing.tries:
                self._placement.landed(departure.place.queue)
        if not under_way:
            self._complete(outgoing, None, SendFailed(f"the send was interrupted: {interrupt!r}"))

    def _sealed(self, departure: Departure) -> OutgoingBatch | None:
        """Return what departs as a batch; None when it makes none, which those who wait for it have been told then."""
        what = departure.what
        if isinstance(what, OutgoingBatch):
            return what
        try:
            return self._sealer.seal(what)
        except Exception as error:  # noqa: BLE001 - a changed message can fail in any way
            if departure.place is not None:
                with self._lock:
                    self._placement.landed(departure.place.queue)
            # Each was checked when it was handed in, so one was changed since.
            text = error.message if isinstance(error, MiniMQError) else repr(error)
            reason = f"a message, or one that was to travel with it, was changed after it had been handed in: {text}"
            self._complete(what.unsealed(), None, InvalidArgument(reason))
            return None

    def _launch(self, outgoing: OutgoingBatch, queue: MessageQueue, address: str) -> None:
        assert outgoing.deadline is not None
        now = time.monotonic()
        outgoing.avoid = queue.broker_name
        flight = Flight(outgoing, queue, address, now, now + patience_s(now, outgoing.deadline, len(outgoing.tries)))
        reason: MiniMQError | None
        try:
            with self._lock:
                self._flights.begin(flight)
                if self._closed:
                    raise _closed()
                stream = self._flights.stream_for(flight)
            reason = stream.append(queue, outgoing.data, partial(self._answered, flight), outgoing.transaction)
        except MiniMQError as error:
            reason = error
        except (ValueError, RuntimeError) as error:  # the channel was closed just now, or there is no thread to be had
            reason = Unavailable(f"no stream to broker {address}: {error}")
        if reason is not None:
            self._failed(flight, reason)

    # ---- outcomes of tries ----------------------------------------------------------------------

    def _landed(self, flight: Flight) -> bool:
        """Take a try out of the air; False when that was done before. Needs the lock."""
        if not self._flights.landed(flight):
            return False
        self._placement.landed(flight.queue)
        return True

    def _answered(self, flight: Flight, result: broker_pb2.AppendResult | None, error: MiniMQError | None) -> None:
        try:
            if result is not None:
                self._acknowledged(flight, result)
            elif error is not None:
                self._failed(flight, error)
        except Exception as fault:  # a fault of ours: whoever waits for this batch must hear of it all the same
            log.exception("producer: an answer was not taken in broker=%s", flight.address)
            self._complete(flight.batch, None, InternalError(f"the producer failed over an answer: {fault!r}"))
        self._pump()

    def _acknowledged(self, flight: Flight, result: broker_pb2.AppendResult) -> None:
        now = time.monotonic()
        outgoing, queue = flight.batch, flight.queue
        status = _STATUS.get(result.status, SendStatus.SEND_OK)  # whatever a newer broker says of it, it is stored
        with self._lock:
            if not self._landed(flight):
                return
            self._placement.answered(queue.broker_name, now - flight.began, now)
            self._progress[outgoing.direction] = now
            self._counters.acknowledged(
                outgoing.count,
                len(outgoing.data),
                now - outgoing.handed_in,
                already_stored=status is SendStatus.ALREADY_STORED,
            )
        self._outages.answered(queue.broker_name, flight.address)
        if result.queue_id != queue.queue_id:  # an earlier try had stored it there
            queue = MessageQueue(queue.topic, queue.broker_name, result.queue_id)
        receipt = BatchReceipt(
            queue,
            result.base_offset,
            result.store_timestamp_ms,
            outgoing.count,
            self._sealer.producer_id,
            outgoing.sequence,
            status,
        )
        self._complete(outgoing, receipt, None)

    def _failed(self, flight: Flight, error: MiniMQError) -> None:
        now = time.monotonic()
        outgoing = flight.batch
        with self._lock:
            if not self._landed(flight):
                return
            self._placement.failed(flight.queue.broker_name, error, now)
        self._outages.failed(flight.queue.broker_name, flight.address, error)
        outgoing.note_try(f"{flight.queue} at {flight.address}", now - flight.began, error)
        if isinstance(error, TopicNotFound):
            self._routes.forget(outgoing.topic)  # the next send asks anew, and so finds or makes it
        self._try_later(outgoing, error)

    def _try_later(self, outgoing: OutgoingBatch, error: MiniMQError, *, tried: bool = True) -> None:
        """Let a batch wait for its next try, or fail it: when trying again cannot help, or time is used up.

        Args:
            outgoing: the batch, which is not in any line.
            error: why it is not stored.
            tried: whether a broker was asked; otherwise there was none to ask.
        """
        assert outgoing.deadline is not None
        now = time.monotonic()
        if error.refresh_route:
            self._routes.refresh_soon(outgoing.topic)
        with self._lock:
            step = next_step(
                error,
                tries=len(outgoing.tries) if tried else 0,
                now=now,
                deadline=outgoing.deadline,
                bound=outgoing.queue is not None,
                elsewhere=self._placement.has_other(outgoing.topic, outgoing.avoid, now),
            )
            closed = self._closed
            if isinstance(step, TryAgain) and not closed:
                if tried:
                    self._counters.retried()
                self._waiting.try_again(outgoing, now + step.delay_s if step.delay_s else None)
        if closed:  # nobody would bring it back
            self._complete(outgoing, None, _closed())
        elif isinstance(step, GiveUp):
            self._give_up(outgoing, error, hopeless=step.hopeless)

    def _give_up(self, outgoing: OutgoingBatch, error: MiniMQError, *, hopeless: bool) -> None:
        """Fail a batch, and with it those behind it that have waited as long where nothing gets through."""
        behind: list[OutgoingBatch | Lane] = []
        if not hopeless:
            with self._lock:
                long_ago = time.monotonic() - self._options.send_timeout_s
                if self._progress.get(outgoing.direction, 0.0) <= long_ago:
                    broker = outgoing.queue.broker_name if outgoing.queue is not None else None
                    behind = self._waiting.take_older(outgoing.topic, broker, long_ago)
        self._complete(outgoing, None, outgoing.final(error))
        for what in behind:
            late = _unsent(what)
            self._complete(late, None, late.final(error))

    def _complete(self, outgoing: OutgoingBatch, receipt: BatchReceipt | None, error: MiniMQError | None) -> None:
        with self._lock:
            if outgoing.done:
                return
            outgoing.done = True
            self._waiting.settled(outgoing)
            if error is not None:
                self._counters.failed(outgoing.count)
        self._sealer.settle(outgoing.sequence)
        try:
            outgoing.complete(receipt, error)
        except Exception:
            log.exception("producer: an outcome was not taken in topic=%s", outgoing.topic)
        finally:
            self._buffer.release(*outgoing.in_buffer)

    def _keep_time(self) -> None:
        while not self._stop.wait(_TICK_S):
            try:
                self._tick(time.monotonic())
            except Exception:
                log.exception("producer: a look at what is late failed")

    def _tick(self, now: float) -> None:
        """Give up tries that take too long, and bring back what waited for its next try."""
        with self._lock:
            late, silent = self._flights.late(now)
            self._waiting.due(now)
        for flight in late:
            waited = now - flight.began
            self._failed(flight, DeadlineExceeded(f"broker {flight.address} did not answer in {waited:.2f} s"))
        # What else is under way there goes elsewhere at once, and nothing waits in memory for a broker that hangs.
        for stream in silent:
            stream.give_up(Unavailable(f"broker {stream.address} left an earlier request without an answer"))
        self._pump()


def _closed() -> Closed:
    return Closed("the producer was closed before the message was acknowledged")


def _unsent(what: OutgoingBatch | Lane) -> OutgoingBatch:
    return what.unsealed() if isinstance(what, Lane) else what
