"""The prefetch buffer of one queue: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from minimq.consuming.message_filter import MessageFilter
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import MessageQueue

#: Minimum number of messages in a hand-over of small batches, even if a poll asks for fewer.
_MIN_MESSAGES = 64


class _Waiting(NamedTuple):
    stored: EncodedRecords
    #: Number of messages before it that the broker skipped.
    passed_over: int


class ReadyBatches:
    """Consecutive batches of one queue, from which polls take messages.

    The event loop creates it. From then on only the polling thread changes it, and the loop reads its counts.
    """

    __slots__ = (
        "_end",
        "_stored",
        "batches",
        "count",
        "done",
        "dropped",
        "first",
        "is_cut",
        "messages",
        "moves",
        "queue",
        "returned",
        "size",
    )

    def __init__(self, queue: MessageQueue, stored: Sequence[EncodedRecords], first: int, moves: int) -> None:
        self.queue = queue
        #: The first wanted offset.
        self.first = first
        #: `QueueReader.moves` at the creation; stale if the reader has another value.
        self.moves = moves
        self._stored = stored
        self._end = stored[-1].base_offset + stored[-1].count
        #: Bytes of the encoded batches.
        self.size = sum(len(each.data) for each in stored)
        #: Set by `open`: the matching messages and, for `poll_arrow`, the decoded batches.
        self.messages: list[ReceivedMessage] = []
        self.batches: list[ReceivedBatch] = []
        #: Number of these messages, also after `free`; -1 before `open`.
        self.count = -1
        #: Number of messages that did not match the filter.
        self.dropped = 0
        #: Number of messages that the user has, and of those that the user has finished.
        self.returned = self.done = 0
        #: The batches after `messages` are damaged.
        self.is_cut = False

    @property
    def is_over(self) -> bool:
        return self.done == self.count

    @property
    def position(self) -> int:
        """Offset after the last message that the user has finished."""
        return self._behind(self.done)

    @property
    def next_offset(self) -> int:
        return self._behind(self.returned)

    def open(self, wanted: MessageFilter, *, keeps_batches: bool = False) -> None:
        """Decode the batches up to the first damaged one, and keep the messages that are wanted.

        Without `keeps_batches`, their bytes are freed: the messages have copies of what they need.
        """
        found: list[ReceivedMessage] = []
        batches: list[ReceivedBatch] = []
        first, read, is_cut = self.first, 0, False
        for stored in self._stored:
            try:
                batch = ReceivedBatch(self.queue, stored)
                if wanted.reads_texts:
                    batch.check_texts()
                messages = batch.messages(first)
            except (CorruptBatch, InvalidArgument):
                if not batches:
                    raise
                is_cut = True
                break  # deliver the batches before it first
            batches.append(batch)
            read += len(messages)
            kept = wanted.apply(messages)
            found = found + kept if found else kept
            first = batch.end_offset
        self.is_cut, self.dropped = is_cut, read - len(found)
        self.batches = batches if keeps_batches else []
        self._end = first
        self.messages, self.count = found, len(found)
        self._stored = self._stored[len(batches) :]  # last: an interrupt before it only keeps the bytes

    def finish(self) -> None:
        """Count the messages that the user has as finished."""
        self.done = self.returned
        if self.done == self.count:
            self.messages, self.batches = [], []  # its reader may keep it for longer

    def _behind(self, count: int) -> int:
        if self.count < 0 or (count <= 0 and self.count):
            return self.first
        messages = self.messages  # empty once all are finished
        return messages[count - 1].queue_offset + 1 if count < len(messages) else self._end

    def rest(self) -> list[EncodedRecords]:
        """Return the batches with messages at or after `position`."""
        position = self.position
        return [stored for stored in self._stored if stored.base_offset + stored.count > position]


class ReadAhead:
    """The batches between the position of a reader and the offset that it fetches next."""

    def __init__(self, queue: MessageQueue, offset: int) -> None:
        self.position = offset
        self.fetch_offset = offset
        self.messages = 0
        self.size = 0
        self.passed_over = 0
        self._queue = queue
        self.batches: deque[_Waiting] = deque()
        #: Number of messages after the last batch that the broker skipped.
        self._gap = 0

    def add(self, batches: Sequence[EncodedRecords], next_offset: int) -> None:
        for stored in batches:
            end = stored.base_offset + stored.count
            if end <= self.fetch_offset:
                continue  # a faulty broker has sent it twice
            gap = self._gap + max(stored.base_offset - self.fetch_offset, 0)
            self._gap = 0
            self.batches.append(_Waiting(stored, gap))
            self.size += len(stored.data)
            self.messages += stored.count
            self.fetch_offset = end
        self._gap += max(next_offset - self.fetch_offset, 0)
        self.fetch_offset = max(self.fetch_offset, next_offset)
        self._pass_over()

    def hand_over(self, max_messages: int, max_bytes: int, moves: int) -> ReadyBatches:
        """Remove the next batches, about `max_messages` and `max_bytes`, at least one; requires `batches`."""
        first = self.position
        batches: list[EncodedRecords] = []
        count = size = 0
        while not batches or (count < max(max_messages, _MIN_MESSAGES) and size < max_bytes and self.batches):
            stored = self._next().stored
            batches.append(stored)
            count += stored.count
            size += len(stored.data)
        return ReadyBatches(self._queue, batches, first, moves)

    def take_batch(self) -> tuple[EncodedRecords, int] | None:
        """Remove the next batch; return it with the number of messages before it that the broker skipped.

        Returns None if the buffer is empty. Do not mix with `hand_over`.
        """
        if not self.batches:
            return None
        found = self._next()
        return found.stored, found.passed_over

    def put_back(self, handed: ReadyBatches) -> None:
        rest = handed.rest()
        if rest:
            self.position = handed.position
        self.batches.extendleft(_Waiting(stored, 0) for stored in reversed(rest))
        self.size += sum(len(stored.data) for stored in rest)
        self.messages += sum(stored.count for stored in rest)

    def skip_to(self, offset: int) -> None:
        """Continue fetching at another offset; buffered batches are delivered first."""
        self.fetch_offset = offset
        self._pass_over()

    def go_to(self, offset: int) -> None:
        self.position = self.fetch_offset = offset
        self.batches.clear()
        self._gap = self.messages = self.size = 0

    def _next(self) -> _Waiting:
        found = self.batches.popleft()
        self.size -= len(found.stored.data)
        self.messages -= found.stored.count
        self.passed_over += found.passed_over
        self.position = found.stored.base_offset + found.stored.count
        self._pass_over()
        return found

    def _pass_over(self) -> None:
        if not self.batches:
            self.position = max(self.position, self.fetch_offset)
            self.passed_over += self._gap
            self._gap = 0
