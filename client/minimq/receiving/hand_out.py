"""The hand-out of messages that were fetched, queue after queue, to the one thread that takes them."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Sequence
from functools import partial
from queue import Empty, SimpleQueue
from typing import NamedTuple

from minimq.connection.connection import Connection
from minimq.receiving.changes import Changes
from minimq.receiving.queue_decisions import Decision, ReaderState
from minimq.receiving.queue_events import QueueEvents
from minimq.receiving.queue_reader import QueueReader
from minimq.receiving.read_ahead import FetchedBatch
from minimq.receiving.read_errors import ReadErrors
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import MessageQueue


class _Taken(NamedTuple):
    """A hand-out of messages."""

    reader: QueueReader
    moves: int
    position: int


class HandOut:
    """The messages of all readers of a consumer, for one thread. Thread-safe, but only one thread may take."""

    def __init__(
        self,
        changes: Changes,
        readers: OrderedDict[MessageQueue, QueueReader],
        events: QueueEvents,
        errors: ReadErrors,
        announce: Callable[[], None],
        carry_out: Callable[[QueueReader, Sequence[Decision]], None],
        connection: Connection,
    ) -> None:
        self._changes = changes
        self._lock = changes.lock  # protects all below
        self._readers = readers
        self._events = events
        self._errors = errors
        self._announce = announce
        self._carry_out = carry_out
        self._call_soon = connection.call_soon
        self._taken: _Taken | None = None  # the latest hand-out
        #: Until when leases hold, by broker name, on the monotonic clock.
        self._trusted_until: dict[str, float] = {}
        self._woken = False

    def trusted(self, broker_name: str, until: float) -> None:
        """Hand nothing out under the leases of a broker after that time, on the monotonic clock."""
        with self._lock:
            self._trusted_until[broker_name] = until
            self._changes.notify()

    def take(self, max_messages: int, timeout_s: float, but: Collection[MessageQueue] = ()) -> list[ReceivedMessage]:
        """Return messages of one queue; nothing when none came in time or a queue has to leave."""
        deadline = time.monotonic() + timeout_s
        changed: SimpleQueue[None] = SimpleQueue()
        while True:
            messages = self.look(max_messages, partial(changed.put, None), but)
            left = deadline - time.monotonic()
            if messages is not None or left <= 0:
                return messages or []
            try:
                changed.get(timeout=left)
            except Empty:
                return []

    def look(
        self, max_messages: int, changed: Callable[[], None], but: Collection[MessageQueue] = ()
    ) -> list[ReceivedMessage] | None:
        """Return messages of one queue, and none if the wait for them is to end."""
        damaged: FetchedBatch | None = None
        while True:
            unopened: list[FetchedBatch] = []
            self._announce()
            with self._lock:
                if self._events.are_there:
                    continue
                self._errors.raise_first(self._readers.values())
                now = time.monotonic()
                reader = self._next_reader(now, but)
                if reader is None:
                    if self._woken or any(each.state is ReaderState.LEAVING for each in self._readers.values()):
                        self._woken = False
                        return []
                    self._changes.notify_next(changed)
                    return None
                unopened = reader.unopened(max_messages, now)
                if not unopened or unopened[0] is damaged:
                    if messages := self._take(reader, max_messages, now):
                        return messages
                    continue  # compaction has removed all that was there
            for batch in unopened:  # without the lock: the frames of other queues come in meanwhile
                try:
                    batch.open()
                except (CorruptBatch, InvalidArgument):  # `take` raises it once all before it is handed out
                    damaged = batch
                    break

    def may_use(self, queue: MessageQueue) -> bool:
        """Tell whether what was taken of a queue before may be given to a listener: its lease holds still."""
        with self._lock:
            reader = self._readers.get(queue)
            return reader is not None and reader.is_trusted(time.monotonic(), self._until(queue))

    def has_any(self, queues: Collection[MessageQueue]) -> bool:
        """Tell whether there are messages of some of these queues."""
        with self._lock:
            now = time.monotonic()
            readers = [reader for queue in queues if (reader := self._readers.get(queue)) is not None]
            return any(reader.may_hand_out(now, self._until(reader.queue)) for reader in readers)

    def is_current(self, queue: MessageQueue) -> bool:
        """Tell whether the latest `take` was of this queue, and nobody has sought or begun it anew since."""
        with self._lock:
            reader = self._readers.get(queue)
            return reader is not None and self._taken is not None and self._taken[:2] == (reader, reader.moves)

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand out again what the latest `take` has returned last, unless the queue is read elsewhere by now."""
        with self._lock:
            if self.is_current(messages[0].queue):
                self._readers[messages[0].queue].give_back(messages)

    def begin(self) -> None:
        """Take note that whatever was handed out before has reached the user."""
        self._taken = None

    def take_back(self) -> None:
        """Hand out again what was handed out since `begin`, whose `take` may have been interrupted anywhere."""
        with self._lock:
            taken, self._taken = self._taken, None
            if taken is None or taken.reader.moves != taken.moves:
                return
            if self._readers.get(taken.reader.queue) is taken.reader:
                self._carry_out(taken.reader, taken.reader.go_back(taken.position, time.monotonic()))

    def wake(self) -> None:
        """End the wait of a `take`, or of the next one, that finds nothing."""
        with self._lock:
            self._woken = True
            self._changes.notify()

    def _next_reader(self, now: float, but: Collection[MessageQueue]) -> QueueReader | None:
        for queue, reader in self._readers.items():
            if reader.may_hand_out(now, self._until(queue)) and queue not in but:
                return reader
        return None

    def _until(self, queue: MessageQueue) -> float:
        return self._trusted_until.get(queue.broker_name, math.inf)

    def _take(self, reader: QueueReader, max_messages: int, now: float) -> list[ReceivedMessage]:
        # First: Ctrl-C may come anywhere from here on.
        self._taken = _Taken(reader, reader.moves, reader.position)
        # To the back, so that every queue gets its turn, also when this one is damaged.
        self._readers.move_to_end(reader.queue)
        messages = reader.take(max_messages, now)
        if reader.is_to_pull(now):
            # On the event loop: Ctrl-C may not come between a request and the word to the loop that there is one.
            self._call_soon(self._pull, reader)
        return messages

    def _pull(self, reader: QueueReader) -> None:
        with self._lock:
            if self._readers.get(reader.queue) is reader:
                self._carry_out(reader, reader.tick(time.monotonic()))
