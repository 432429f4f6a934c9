"""The messages of one queue that were fetched and not handed out yet: pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from minimq.receiving.received import EncodedBatch, ReceivedBatch, ReceivedMessage
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import MessageQueue


class FetchedBatch:
    """A batch that was fetched.

    Args:
        queue: where it stands.
        stored: the batch.
        first: offset from which on its messages are wanted.
        check_texts: whether keys and properties are checked when it is opened.
        due: the time from which it may be handed out.
        passed_over: how many messages the broker passed over before it.
    """

    __slots__ = ("_check_texts", "_first", "_messages", "_queue", "batch", "due", "passed_over", "stored")

    def __init__(
        self, queue: MessageQueue, stored: EncodedBatch, first: int, *, check_texts: bool, due: float, passed_over: int
    ) -> None:
        self.stored = stored
        self.due = due
        self.passed_over = passed_over
        self._queue = queue
        self._first = first
        self._check_texts = check_texts
        self._messages: list[ReceivedMessage] | None = None
        #: The batch, once it is open.
        self.batch: ReceivedBatch | None = None

    @property
    def is_open(self) -> bool:
        """True if `open` takes no time."""
        return self._messages is not None

    def open(self) -> list[ReceivedMessage]:
        """Return the messages. The first time it takes as long as the batch is large, and needs no lock.

        Raises:
            CorruptBatch, InvalidArgument: it is damaged, or of a newer format.
        """
        if self._messages is None:
            batch = ReceivedBatch(self._queue, self.stored)
            if self._check_texts:
                batch.check_texts()
            self._messages = batch.messages(self._first)
            self.batch = batch
        return self._messages


class ReadAhead:
    """The batches between the position of a reader and the offset that it fetches next."""

    def __init__(self, queue: MessageQueue, offset: int, delay_ms: int = 0, *, check_texts: bool = False) -> None:
        self.position = offset
        self.fetch_offset = offset
        self.messages = 0
        self.size = 0
        self.passed_over = 0
        self._queue = queue
        self._delay_ms = delay_ms
        self._check_texts = check_texts
        self._batches: deque[FetchedBatch] = deque()
        #: Messages that the broker has passed over behind the last batch.
        self._gap = 0
        #: The batch that is being handed out, and how many of its messages were.
        self._opened: list[ReceivedMessage] = []
        self._handed_out = 0
        #: The batches of the messages that were handed out last, which `poll_arrow` needs whole.
        self._latest: list[ReceivedBatch | None] = []

    def is_due(self, now: float) -> bool:
        """Tell whether something may be handed out."""
        if self._handed_out < len(self._opened):
            return True
        return bool(self._batches) and (not self._delay_ms or self._batches[0].due <= now)

    def add(self, batches: Sequence[EncodedBatch], next_offset: int, now_ms: int, now: float) -> None:
        """Take in what was fetched."""
        for stored in batches:
            end = stored.base_offset + stored.count
            if end <= self.fetch_offset:
                continue  # a broker that sends it again is wrong: there is nothing new in it
            left_ms = min(stored.stored_ms + self._delay_ms - now_ms, self._delay_ms)
            gap = self._gap + max(stored.base_offset - self.fetch_offset, 0)
            self._batches.append(
                FetchedBatch(
                    self._queue,
                    stored,
                    self.fetch_offset,
                    check_texts=self._check_texts,
                    due=now + left_ms / 1000,
                    passed_over=gap,
                )
            )
            self._gap = 0
            self.size += len(stored.data)
            self.messages += stored.count
            self.fetch_offset = end
        self._gap += max(next_offset - self.fetch_offset, 0)
        self.fetch_offset = max(self.fetch_offset, next_offset)
        self._pass_over()

    def unopened(self, max_messages: int, now: float) -> list[FetchedBatch]:
        """Return the batches that `take` is about to open; whoever opens them before spares it the time."""
        found: list[FetchedBatch] = []
        wanted = max_messages - len(self._opened) + self._handed_out
        for fetched in self._batches:
            if wanted <= 0 or (self._delay_ms and fetched.due > now):
                break
            wanted -= fetched.stored.count
            if not fetched.is_open:
                found.append(fetched)
        return found

    def take(self, max_messages: int, now: float) -> list[ReceivedMessage]:
        """Hand messages out; what was sent one by one comes in many batches."""
        taken: list[ReceivedMessage] = []
        del self._latest[:-1]
        while len(taken) < max_messages and self.is_due(now):
            if self._handed_out == len(self._opened):
                try:
                    self._open()
                except (CorruptBatch, InvalidArgument):
                    if taken:
                        break  # those ahead of it come first
                    raise
            more = self._opened[self._handed_out : self._handed_out + max_messages - len(taken)]
            self._handed_out += len(more)
            taken += more
        if taken:
            self.position = taken[-1].queue_offset + 1
        self._pass_over()  # also when all of the last batch is removed by compaction
        return taken

    def take_batch(self) -> tuple[EncodedBatch, int] | None:
        """Hand the next batch out as it was stored, with the number of messages that the broker passed over before it.

        Returns None when there is none. Not to be mixed with `take`.
        """
        if not self._batches:
            return None
        stored, passed_over = self._next()
        self.position = stored.base_offset + stored.count
        self._pass_over()
        return stored, passed_over

    def give_back(self, messages: Sequence[ReceivedMessage]) -> None:
        """Hand the last messages that `take` has returned out again; only while nothing has moved the reader since."""
        self._opened = [*messages, *self._opened[self._handed_out :]]
        self._handed_out = 0
        self.position = messages[0].queue_offset

    def skip_to(self, offset: int) -> None:
        """Fetch from another offset on; what is here comes first."""
        self.fetch_offset = offset
        self._pass_over()

    def go_to(self, offset: int) -> None:
        """Go on at another offset, and forget what was fetched."""
        self.position = self.fetch_offset = offset
        self._batches.clear()
        self._latest.clear()
        self._opened = []
        self._handed_out = self._gap = self.messages = self.size = 0

    def _open(self) -> None:
        self._opened = self._batches[0].open()
        self._latest.append(self._batches[0].batch)
        self._handed_out = 0
        self._next()

    def _next(self) -> tuple[EncodedBatch, int]:
        fetched = self._batches.popleft()
        self.size -= len(fetched.stored.data)
        self.messages -= fetched.stored.count
        self.passed_over += fetched.passed_over
        return fetched.stored, fetched.passed_over

    def _pass_over(self) -> None:
        if not self._batches and self._handed_out == len(self._opened):
            self.position = max(self.position, self.fetch_offset)
            self.passed_over += self._gap
            self._gap = 0
