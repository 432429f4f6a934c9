"""The decisions of sending, without I/O: what waits, what is in flight, what is sent next, and what follows a failure.

Events go in as calls of methods: a message was added, a try was acknowledged or failed, time has passed. Actions come
out: `Send`, `Complete`, `FindRoute` and `Abandon`. Times are seconds on one clock, given by the caller.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from minimq.routes.retry_schedule import try_timeout_s
from minimq.sending.destination_queues import DestinationQueues
from minimq.sending.pending_batch import BatchNumber, Direction, PendingBatch, PendingMessage, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import BatchReceipt, SendStatus
from minimq.sending.retry import GiveUp, next_step
from minimq.sending.statistics import ProducerStatistics, SendCounters
from minimq_common.errors import Closed, DeadlineExceeded, MiniMQError, SendFailed, TopicNotFound

#: How often a topic that vanished is looked for, a tenth of a second apart.
_LOOKUPS = 5


class Send(NamedTuple):
    """Encode the batch unless that was done, and send it to its target."""

    batch: PendingBatch


class Complete(NamedTuple):
    """Tell the outcome of a batch: a receipt, or the reason why there is none."""

    batch: PendingBatch
    receipt: BatchReceipt | None
    error: MiniMQError | None


class FindRoute(NamedTuple):
    """Ask for the route of a topic; forget the known one first if the topic is gone."""

    topic: str
    is_gone: bool


class Abandon(NamedTuple):
    """End the stream by which a try was sent that its broker has left without an answer."""

    stream: object
    target: Target
    error: MiniMQError


Action = Send | Complete | FindRoute | Abandon


class RecordAccumulator:
    """All messages of one producer that have no outcome yet. Not thread-safe: guarded by the lock of its `Sender`."""

    def __init__(self, selector: QueueSelector, options: ProducerOptions) -> None:
        self._selector = selector
        self._options = options
        self._waiting = DestinationQueues(selector, options)
        self._in_flight: set[PendingBatch] = set()
        self._next_sequence = 0
        #: Numbers that may still be sent again: a set that keeps its order, so that the first is the oldest.
        self._open_numbers: dict[int, None] = {}
        #: When something was last acknowledged, by direction.
        self._progress: dict[Direction, float] = {}
        self._counters = SendCounters()
        self._closed = False

    # ---- what is handed in ----------------------------------------------------------------------

    def join(self, item: PendingMessage) -> bool:
        """Add a checked message if others gather for the same destination: it leaves with them. Return whether."""
        return self._waiting.join(item)

    def add_message(self, item: PendingMessage, now: float, thread: int) -> PendingBatch | None:
        """Add a checked message; return a batch to be sent at once, or None when `drain` has to find out."""
        if self._closed:
            raise _closed()
        topic, queue = item.message.topic, item.queue
        if self._waiting.is_free(item):
            try:
                target = self._selector.take(topic, queue, None, now)
            except MiniMQError:
                target = None  # `drain` deals with the reason
            if target is not None:
                batch = PendingBatch(topic, queue, (item,), item.message.message_group, item.due_bucket)
                self._waiting.pass_by(batch)
                self._leave(batch, target, now, thread)
                return batch
        self._waiting.add_message(item)
        return None

    def add_batch(self, batch: PendingBatch) -> Sequence[Action]:
        """Add a batch of records."""
        if self._closed:
            return self._complete(batch, None, _closed())
        self._waiting.add_batch(batch)
        return ()

    def repair(self, thread: int) -> None:
        """Let everything leave that waits, after Ctrl-C in a call of a thread. What it has taken out waits again.

        It looks at everything, as the next two do.
        """
        self._waiting.repair()
        for batch in [batch for batch in self._in_flight if batch.thread == thread and batch.began == math.inf]:
            self._end_try(batch, batch.attempts)
            self._waiting.try_again(batch, None)

    def has_message(self, item: PendingMessage) -> bool:
        """Return whether a message was added."""
        return any(item in batch.messages for batch in (*self._in_flight, *self._waiting.all()))

    def has_batch(self, batch: PendingBatch) -> bool:
        """Return whether a batch was added."""
        return batch in self._in_flight or batch in self._waiting.all()

    def new_number(self) -> BatchNumber:
        """Return the number for a new batch."""
        sequence = self._next_sequence
        number = BatchNumber(sequence, sequence - next(iter(self._open_numbers), sequence))
        # After the last call: Ctrl-C comes before the number is open, or once the caller has it.
        self._next_sequence = sequence + 1
        self._open_numbers[sequence] = None
        return number

    def close_number(self, number: BatchNumber) -> None:
        """Note that a number will not be sent again: its batch is stored, or was given up. Idempotent."""
        self._open_numbers.pop(number.sequence, None)

    # ---- what leaves ----------------------------------------------------------------------------

    @property
    def is_waiting(self) -> bool:
        """True if something could leave as soon as there is room. May be read without the lock."""
        return self._waiting.is_ready

    @property
    def is_empty(self) -> bool:
        """True if everything has its outcome."""
        return not self._in_flight and self._waiting.is_empty

    @property
    def wake_at(self) -> float:
        """When `time_passed` has something to do; infinite when nothing is in flight or waits for a retry."""
        expires = min((batch.expires for batch in self._in_flight), default=math.inf)
        return min(expires, self._waiting.next_retry)

    def drain(self, now: float, thread: int) -> Sequence[Action] | None:
        """Take out what leaves next; return what a thread is to do with it, None when everything has to wait."""
        found = self._waiting.next(now)
        if found is None:
            return None
        batch, where = found
        if isinstance(where, MiniMQError):
            return self._nowhere(batch, where, now)
        self._leave(batch, where, now, thread)
        return (Send(batch),)

    def _nowhere(self, batch: PendingBatch, reason: MiniMQError, now: float) -> Sequence[Action]:
        self._close(batch, now)
        # A broker said that the topic is gone, and name servers had the time to say where else it is.
        batch.lookups += not self._selector.is_known(batch.topic)
        if batch.lookups > _LOOKUPS:
            return self._give_up(batch, reason, now, hopeless=True)
        return self._try_later(batch, reason, now, tried=False)

    def _leave(self, batch: PendingBatch, target: Target, now: float, thread: int) -> None:
        self._close(batch, now)
        batch.target = target
        batch.attempts += 1
        batch.stream = None
        batch.thread = thread
        batch.began = math.inf
        batch.expires = now + self._options.send_timeout_s  # until it is sent: whoever is to do that may be interrupted
        self._in_flight.add(batch)

    def _close(self, batch: PendingBatch, now: float) -> None:
        if batch.number is None:
            batch.number = self.new_number()
        if batch.deadline == math.inf:
            batch.deadline = now + self._options.send_timeout_s

    def begin_try(self, batch: PendingBatch, now: float) -> bool:
        """Note that a batch, encoded by now, is being sent: from here on its try takes time.

        Return False if the batch has failed meanwhile: it must not be sent any more, as the caller may have sent the
        message again.
        """
        if batch not in self._in_flight:
            return False
        batch.began = now
        batch.expires = now + try_timeout_s(now, batch.deadline, len(batch.tries))
        return True

    # ---- outcomes of tries ----------------------------------------------------------------------

    def acknowledged(
        self, batch: PendingBatch, attempt: int, receipt: BatchReceipt, now: float
    ) -> Sequence[Action] | None:
        """Take in that a broker has stored a batch; return None if that try had an outcome before."""
        if not self._end_try(batch, attempt):
            return None
        assert batch.target is not None
        self._selector.answered(batch.target.queue.broker_name, now - batch.began, now)
        self._progress[batch.direction] = now
        already_stored = receipt.status is SendStatus.ALREADY_STORED
        size = len(batch.data or b"")
        self._counters.acknowledged(receipt.count, size, now - batch.handed_in, already_stored=already_stored)
        return self._complete(batch, receipt, None)

    def failed(self, batch: PendingBatch, attempt: int, error: MiniMQError, now: float) -> Sequence[Action] | None:
        """Take in that a try has failed; return None if that try had an outcome before."""
        if not self._end_try(batch, attempt):
            return None
        assert batch.target is not None
        self._selector.failed(batch.target.queue.broker_name, error, now)
        batch.note_try(now - batch.began, error)
        return self._try_later(batch, error, now)

    def unsendable(self, batch: PendingBatch, error: MiniMQError) -> Sequence[Action]:
        """Fail a batch that is to be sent and will not be: it was not encoded, or the sender failed.

        A batch that may be under way already is left to its answer, or to the end of its try.
        """
        if batch.began < math.inf or not self._end_try(batch, batch.attempts):
            return ()
        return self._complete(batch, None, error)

    def give_up(self, batch: PendingBatch, error: MiniMQError) -> Sequence[Action]:
        """Fail a batch, whatever is done with it."""
        self._end_try(batch, batch.attempts)
        return self._complete(batch, None, error)

    def time_passed(self, now: float) -> Sequence[Action]:
        """Give up tries that take too long, and bring back what waited for its next try."""
        self._waiting.bring_back(now)
        actions: list[Action] = []
        silent: dict[object, Abandon] = {}
        for batch in [batch for batch in self._in_flight if batch.expires <= now]:
            if batch.began == math.inf:
                actions += self.unsendable(batch, SendFailed("the thread that was to send the message did not do so"))
                continue
            assert batch.target is not None
            late = DeadlineExceeded(f"broker {batch.target.address} did not answer in {now - batch.began:.2f} s")
            if batch.stream is not None:
                silent[batch.stream] = Abandon(batch.stream, batch.target, late)
            actions += self.failed(batch, batch.attempts, late, now) or ()
        # What else is under way there goes elsewhere at once, and nothing waits in memory for a broker that hangs.
        return [*actions, *silent.values()]

    def close(self) -> list[Action]:
        """Take in nothing any more, and fail all that has no outcome."""
        self._closed = True
        left = [*self._waiting.clear(), *self._in_flight]
        self._in_flight.clear()
        return [action for batch in left for action in self._complete(batch, None, _closed())]

    def _end_try(self, batch: PendingBatch, attempt: int) -> bool:
        if attempt != batch.attempts or batch not in self._in_flight:
            return False
        self._in_flight.remove(batch)
        assert batch.target is not None
        self._selector.release(batch.target)
        return True

    def _try_later(
        self, batch: PendingBatch, error: MiniMQError, now: float, *, tried: bool = True
    ) -> Sequence[Action]:
        actions: list[Action] = []
        is_gone = tried and isinstance(error, TopicNotFound)  # the next send asks anew, and so finds or makes it
        if is_gone or error.refresh_route:
            actions.append(FindRoute(batch.topic, is_gone))
        if self._closed:  # nobody would bring it back
            return [*actions, *self._complete(batch, None, _closed())]
        step = next_step(
            error,
            tries=len(batch.tries) if tried else 0,
            now=now,
            deadline=batch.deadline,
            bound=batch.queue is not None,
            elsewhere=self._selector.has_other(batch.topic, batch.avoid, now),
        )
        if isinstance(step, GiveUp):
            return [*actions, *self._give_up(batch, error, now, hopeless=step.hopeless)]
        if tried:
            self._counters.retried()
        self._waiting.try_again(batch, now + step.delay_s if step.delay_s else None)
        return actions

    def _give_up(self, batch: PendingBatch, error: MiniMQError, now: float, *, hopeless: bool) -> Sequence[Action]:
        actions = [*self._complete(batch, None, batch.final(error))]
        long_ago = now - self._options.send_timeout_s
        if not hopeless and self._progress.get(batch.direction, -math.inf) <= long_ago:
            broker = batch.queue.broker_name if batch.queue is not None else None
            for late in self._waiting.take_older(batch.topic, broker, long_ago):
                actions += self._complete(late, None, late.final(error))
        return actions

    def _complete(
        self, batch: PendingBatch, receipt: BatchReceipt | None, error: MiniMQError | None
    ) -> Sequence[Action]:
        if batch.done:
            return ()
        batch.done = True
        if batch.number is not None:
            self.close_number(batch.number)
        if error is not None:
            self._counters.failed(batch.count)
        self._waiting.completed(batch)
        return (Complete(batch, receipt, error),)

    # ---- brokers to avoid -----------------------------------------------------------------------

    def to_probe(self, now: float) -> Mapping[str, str] | None:
        """Return the addresses of brokers that are left out because they were not reached, by name; None without any.

        One that no route names has none, and may be named again.
        """
        return self._selector.to_probe(now)

    def probed(self, broker: str, now: float, *, reached: bool) -> None:
        """Take in whether such a broker answers now."""
        self._selector.probed(broker, now, reached=reached)

    def statistics(self, buffered: tuple[int, int], now: float) -> ProducerStatistics:
        """Return what was done so far, with the messages and bytes that are buffered."""
        return self._counters.snapshot(buffered, tuple(self._selector.avoided(now)))


def _closed() -> Closed:
    return Closed("the producer was closed before the message was acknowledged")
