"""The decisions of sending: which batches wait, which are in flight, what is sent next, and what follows a failure.

Events are method calls: a message was added, an attempt was acknowledged or failed, time has passed. An `BatchSink`
carries out the decisions. Times are seconds on one clock, passed in by the caller.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Iterator
from functools import reduce
from itertools import chain, count
from typing import Protocol

from minimq.connection.retry_schedule import attempt_timeout_s, batch_pause_s
from minimq.sending.destination_queues import DestinationQueues
from minimq.sending.pending_batch import AttemptStream, BatchNumber, PendingBatch, PendingMessage, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.statistics import BOUNDS_S, SendCounters
from minimq_common.errors import Closed, DeadlineExceeded, MinimqError, QueueNotFound, TopicNotFound, Unavailable

#: Batches of a topic without a route fail after this time; the route is looked up every 0.1 s.
_ROUTE_TIMEOUT_S = 0.5


class BatchSink(Protocol):
    """Carries out what a `RecordAccumulator` decides; the `Sender`."""

    def transmit(self, batch: PendingBatch, /) -> None:
        """Encode a batch unless an earlier attempt did, and send it to its target."""

    def complete(self, batch: PendingBatch, error: MinimqError, /) -> None:
        """Deliver the error of a failed batch."""

    def find_route(self, topic: str, /, *, is_gone: bool) -> None:
        """Refresh the route of a topic in the background; drop the known one first if the topic is gone."""

    def not_stored(self, target: Target, error: MinimqError, /) -> None:
        """Log an attempt that timed out."""


class RecordAccumulator:
    """Decides when and where the messages of one producer are sent. Owns all without an outcome. On one event loop."""

    def __init__(self, selector: QueueSelector, options: ProducerOptions, outlet: BatchSink) -> None:
        self._selector = selector
        self._options = options
        self._outlet = outlet
        self._first_timeout_s = attempt_timeout_s(0.0, options.send_timeout_s, 0)
        self._sequences = count()
        #: Sequence numbers of batches that will not be sent again: all below `_settled`, and those in the set.
        self._settled = 0
        self._ended: set[int] = set()
        self._waiting = DestinationQueues(selector, options)
        #: Not empty if a batch could be sent as soon as a window has room.
        self.waiting = self._waiting.ready
        self._in_flight: set[PendingBatch] = set()
        #: Time of the last acknowledgement by what fails together: (topic, ""), or ("", broker) of a fixed queue.
        self._progress: dict[tuple[str, str], float] = {}
        #: When a batch was first found to have no route, by topic.
        self._without_route: dict[str, float] = {}
        self.counters = SendCounters()

    # ---- adding ---------------------------------------------------------------------------------

    def add_message(self, item: PendingMessage, now: float, *, is_lone: bool) -> None:
        """Add a validated message. A lone one is sent at once if it can be; others wait for `drain`."""
        message, queue = item.message, item.queue
        topic, group, bucket = message.topic, message.message_group, None if item.hold is None else item.hold.bucket
        key = (topic, queue, None, item.may_move, group, bucket)
        if is_lone and not self.waiting and key not in self._waiting.destinations:
            try:
                target = self._selector.take(topic, queue, None, item.may_move, now)
            except MinimqError:
                target = None  # `drain` gets the same error, and handles it
            if target is not None:
                batch = PendingBatch(topic, queue, deque((item,)), item.may_move, group, bucket, item.handed_in)
                sequence = next(self._sequences)  # like `_close`, without further calls
                batch.number = BatchNumber(sequence, max(sequence - self._settled, 0))
                batch.count, batch.memory, batch.hold = 1, item.memory, item.hold
                if queue is not None:
                    self._waiting.record_sent(batch)
                self._leave(batch, target, now)
                return
        self._waiting.add_message(item)

    def add_batch(self, batch: PendingBatch) -> None:
        self._waiting.add_batch(batch)

    def unfinished(self, until: float) -> Iterator[PendingBatch]:
        """Yield the batches with messages that were accepted up to a time."""
        return (batch for batch in chain(self._waiting.batches(), self._in_flight) if batch.handed_in <= until)

    # ---- numbers --------------------------------------------------------------------------------

    def new_number(self) -> BatchNumber:
        """Return the number of another batch; call `finish` once that will not be sent again. Thread-safe."""
        sequence = next(self._sequences)
        return BatchNumber(sequence, max(sequence - self._settled, 0))

    def _close(self, batch: PendingBatch) -> None:
        batch.number = self.new_number()
        batch.count = len(batch.messages)
        batch.memory = sum([item.memory for item in batch.messages])
        holds = [item.hold for item in batch.messages if item.hold is not None]
        if holds:
            batch.hold = reduce(lambda hold, other: hold.merged(other), holds)

    # ---- sending --------------------------------------------------------------------------------

    @property
    def is_empty(self) -> bool:
        """True if no batch waits or is in flight."""
        return not self._in_flight and self._waiting.is_empty

    @property
    def wake_at(self) -> float:
        """Time at which `time_passed` must be called next; infinite if nothing is in flight or waits for a retry."""
        expires = min((batch.expires for batch in self._in_flight), default=math.inf)
        return min(expires, self._waiting.next_retry)

    def drain(self, now: float) -> bool:
        """Send the next batch; False if none can be sent now."""
        found = self._waiting.next(now)
        if found is None:
            return False
        batch, where = found
        if isinstance(where, MinimqError):
            self._nowhere(batch, where, now)
        else:
            self._leave(batch, where, now)
        return True

    def _nowhere(self, batch: PendingBatch, reason: MinimqError, now: float) -> None:
        if batch.number is None:
            self._close(batch)
        if batch.deadline == math.inf:
            batch.deadline = now + self._options.send_timeout_s
        # A broker said that the topic is gone. Name servers get some time to report where else it exists.
        if self._selector.is_known(batch.topic):
            self._without_route.pop(batch.topic, None)
        elif now - self._without_route.setdefault(batch.topic, now) >= _ROUTE_TIMEOUT_S:
            self._give_up(batch, reason, now, hopeless=True)
            return
        self._try_later(batch, reason, now, tried=False)

    def _leave(self, batch: PendingBatch, target: Target, now: float) -> None:
        if batch.number is None:
            self._close(batch)
        if batch.deadline == math.inf:
            batch.deadline = now + self._options.send_timeout_s
        if self._without_route:
            self._without_route.pop(batch.topic, None)
        batch.target = target
        batch.attempts += 1
        batch.stream = None
        batch.began = now
        failed = len(batch.failed_attempts)
        batch.timeout_s = attempt_timeout_s(now, batch.deadline, failed) if failed else self._first_timeout_s
        batch.expires = now + batch.timeout_s
        self._in_flight.add(batch)
        self._outlet.transmit(batch)

    # ---- outcomes of attempts ----------------------------------------------------------------------

    def acknowledged(self, batch: PendingBatch, attempt: int, receipt: BatchReceipt, now: float) -> bool:
        """Record that a broker has stored a batch; False if that attempt already had an outcome."""
        if attempt != batch.attempts or batch not in self._in_flight:
            return False
        self._in_flight.remove(batch)
        assert batch.target is not None
        self._selector.release(batch.target, now - batch.began, now)
        queue = batch.queue
        self._progress[(batch.topic, "") if queue is None else ("", queue.broker_name)] = now
        counters, latency_s = self.counters, now - batch.handed_in
        counters.acknowledged += batch.count
        counters.batches += 1
        counters.bytes += len(batch.data or b"")
        counters.already_stored += receipt.status is SendStatus.ALREADY_STORED
        counters.latencies[bisect_left(BOUNDS_S, latency_s)] += batch.count
        counters.latency_s += batch.count * latency_s
        self.finish(batch)
        return True

    def failed(self, batch: PendingBatch, attempt: int, error: MinimqError, now: float) -> bool:
        """Record a failed attempt, and schedule a retry or fail the batch; False if it already had an outcome."""
        if not self._end_attempt(batch, attempt):
            return False
        assert batch.target is not None
        took_s = now - batch.began
        self._selector.failed(batch.target, error, took_s, now)
        batch.note_attempt(took_s, error)
        self._try_later(batch, error, now)
        return True

    def give_up(self, batch: PendingBatch, error: MinimqError) -> None:
        """Fail a batch at once, in any state."""
        self._end_attempt(batch, batch.attempts)
        self._complete(batch, error)

    def time_passed(self, now: float) -> None:
        """Fail attempts that have timed out, and queue the batches whose retry is due."""
        self._waiting.bring_back(now)
        silent: dict[AttemptStream, tuple[Target, MinimqError]] = {}
        for batch in [batch for batch in self._in_flight if batch.expires <= now]:
            target, stream = batch.target, batch.stream
            assert target is not None
            assert stream is not None  # by `transmit`
            if self._is_moving(batch, stream.moved_at, now):
                continue
            took = f"{now - batch.began:.2f} s{stream.delay}"
            late = DeadlineExceeded(f"broker {target.address} did not answer in {took}")
            silent[stream] = target, late
            self.failed(batch, batch.attempts, late, now)
        # The other attempts on that stream are retried elsewhere at once, and gRPC buffers nothing for a hung broker.
        for stream, (target, error) in silent.items():
            self._outlet.not_stored(target, error)
            left = f"broker {target.address} left an earlier request without an answer{stream.delay}"
            stream.fail(Unavailable(left))

    def _is_moving(self, batch: PendingBatch, moved_at: float, now: float) -> bool:
        # The timeout of an attempt does not count the time in which its bytes, or those before it, make progress.
        moving_s = moved_at + batch.timeout_s - batch.expires
        if moving_s > 0:
            batch.expires += moving_s
            batch.deadline += moving_s
        return batch.expires > now

    def close(self) -> None:
        """Fail all batches without an outcome. No others may be added."""
        left = [*self._waiting.clear(), *self._in_flight]
        for batch in left:
            batch.may_be_stored |= batch in self._in_flight
        self._in_flight.clear()
        for batch in left:
            self._complete(batch, _closed(batch))

    def _end_attempt(self, batch: PendingBatch, attempt: int) -> bool:
        if attempt != batch.attempts or batch not in self._in_flight:
            return False
        self._in_flight.remove(batch)
        assert batch.target is not None
        self._selector.release(batch.target)
        return True

    def _try_later(self, batch: PendingBatch, error: MinimqError, now: float, *, tried: bool = True) -> None:
        is_gone = tried and isinstance(error, TopicNotFound)  # without a route, the next send finds or creates it anew
        if is_gone or error.refresh_route:
            self._outlet.find_route(batch.topic, is_gone=is_gone)
        is_moving = batch.may_move and isinstance(error, QueueNotFound)
        pause_s = batch_pause_s(
            error,
            len(batch.failed_attempts) if tried else 0,
            bound=batch.queue is not None and not is_moving and (tried or self._selector.is_known(batch.topic)),
            elsewhere=self._selector.has_other(batch.topic, batch.avoid, now),
        )
        if pause_s is None or now + pause_s >= batch.deadline:
            self._give_up(batch, error, now, hopeless=pause_s is None)
            return
        if tried:
            self.counters.retries += 1
        self._waiting.try_again(batch, now + pause_s if pause_s else None)

    def _give_up(self, batch: PendingBatch, error: MinimqError, now: float, *, hopeless: bool) -> None:
        self._complete(batch, batch.final(error))
        long_ago = now - self._options.send_timeout_s
        broker = batch.queue.broker_name if batch.queue is not None else None
        way = (batch.topic, "") if broker is None else ("", broker)
        if not hopeless and self._progress.get(way, -math.inf) <= long_ago:
            for late in self._waiting.take_older(batch.topic, broker, long_ago):
                self._complete(late, late.final(error))

    def _complete(self, batch: PendingBatch, error: MinimqError) -> None:
        if batch.done:
            return
        if batch.number is None:
            self._close(batch)
        self.finish(batch)
        self.counters.failed += batch.count
        self.counters.in_doubt += batch.count * batch.may_be_stored
        self._outlet.complete(batch, error)

    def finish(self, batch: PendingBatch) -> None:
        """Record that a batch will not be sent again."""
        batch.done = True
        if batch.number is not None:
            self._ended.add(batch.number.sequence)
            while self._settled in self._ended:
                self._ended.remove(self._settled)
                self._settled += 1
        if batch.queue is not None:
            self._waiting.completed(batch)


def _closed(batch: PendingBatch) -> Closed:
    outcome = "may be stored" if batch.may_be_stored else "is not stored"
    return Closed(f"the producer was closed before the message was acknowledged: it {outcome}")
