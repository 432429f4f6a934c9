"""The commits of one consumer: recorded through an offset store, tried again for a while, and reported when lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from minimq.receiving.offset_stores import OffsetStore
from minimq.receiving.queue_decisions import Commit
from minimq.receiving.queue_reader import QueueReader
from minimq_common.errors import Fenced, MiniMQError, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue

#: Wait before what was not recorded is tried again, in seconds.
_RETRY_S = 0.2


class _Failure(NamedTuple):
    """Why an offset was not recorded, and under which lease that was tried."""

    error: MiniMQError
    epoch: int


class Progress(NamedTuple):
    """The offsets that queues are read up to.

    Attributes:
        offsets: the next offset to read, by queue.
        terms: of the log that was read by then, of those queues that are read.
    """

    offsets: Mapping[MessageQueue, int]
    terms: Mapping[MessageQueue, int]


class Commits:
    """The commits of one consumer, one after the other. Lives on the event loop of its connection."""

    def __init__(self, readers: Mapping[MessageQueue, QueueReader], store: OffsetStore) -> None:
        self.store = store
        self.leased = False
        self._readers = readers
        #: Queues that left before what was handed out of them was recorded, and how far it was.
        self._left_behind: dict[MessageQueue, int] = {}
        #: Queues that left since their topic was deleted.
        self._deleted: set[MessageQueue] = set()
        #: Held while offsets are on their way: those that are recorded later shall arrive later.
        self._turn = asyncio.Lock()

    @property
    def has_any(self) -> bool:
        """True if queues are read, or have left before what was handed out of them was recorded."""
        return bool(self._readers or self._left_behind)

    def progress(self, offsets: Mapping[MessageQueue, int]) -> Progress:
        """Return offsets as they are to be recorded: those of the log that was read by now, also if that is later."""
        return Progress(
            offsets, {queue: reader.term_taken for queue, reader in self._readers.items() if queue in offsets}
        )

    def progress_of_all(self) -> Progress:
        """Return how far all queues are finished.

        Queues of a topic that was deleted do not count: `poll` reports the deletion once.
        """
        offsets = {queue: reader.position for queue, reader in self._readers.items() if not reader.is_deleted}
        return self.progress(offsets)

    async def record(self, progress: Progress, *, automatic: bool = False, retry_s: float = 0.0) -> None:
        """Record offsets at their brokers and wait until they are on disk.

        After a seek the offset of a queue may go back. What can be recorded is, also when a broker does not answer or a
        queue was lost.
        """
        failures = await self._try(progress, automatic=automatic)
        give_up = time.monotonic() + retry_s
        while failures and time.monotonic() + _RETRY_S < give_up:
            again = [queue for queue, failure in failures.items() if self._may_pass(queue, failure)]
            if not again:
                break
            await asyncio.sleep(_RETRY_S)
            lasting = {queue: failure for queue, failure in failures.items() if queue not in again}
            retried = Progress({queue: progress.offsets[queue] for queue in again}, progress.terms)
            failures = lasting | await self._try(retried, automatic=automatic)
        # A queue that was lost or deleted is no longer this consumer's matter: what else has failed comes first.
        errors = sorted((failure.error for failure in failures.values()), key=_order)
        if errors:
            raise errors[0]

    async def record_delivery(self, queue: MessageQueue, first: int, tries: int, end: int) -> None:
        """Record that messages of a queue are about to be delivered, and nothing else is; raises as `record`."""
        if (reader := self._readers.get(queue)) is not None:
            reader.delivers_alone(first, tries, end)
        progress = self.progress({queue: first})
        await self.record(progress)

    async def record_all(self, progress: Progress, *, automatic: bool = False, retry_s: float = 0.0) -> None:
        """Record how far all queues are finished, as `progress_of_all` has returned it."""
        try:
            await self.record(progress, automatic=automatic, retry_s=retry_s)
        except TopicNotFound:
            if not self.leased:
                raise
        lost, self._left_behind = self._left_behind, {}
        if lost:
            names = ", ".join(f"{queue} up to {offset}" for queue, offset in sorted(lost.items()))
            raise Fenced(
                f"queues have left before they were committed, and are read again from their last commit: {names}"
            )

    def begins(self, queue: MessageQueue) -> None:
        """Note that a queue is about to be read."""
        self._deleted.discard(queue)

    def deleted(self, queues: Iterable[MessageQueue]) -> None:
        """Note that queues leave since their topic was deleted."""
        self._deleted.update(queues)

    def leaves(self, reader: QueueReader) -> None:
        """Note that a queue is read no more."""
        if reader.is_uncommitted and reader.queue not in self._deleted:
            self._left_behind[reader.queue] = reader.position

    def _may_pass(self, queue: MessageQueue, failure: _Failure) -> bool:
        reader = self._readers.get(queue)
        if isinstance(failure.error, Fenced):
            return reader is not None and reader.may_be_recorded(failure.epoch)
        return failure.error.retriable

    async def _try(self, progress: Progress, *, automatic: bool) -> dict[MessageQueue, _Failure]:
        async with self._turn:
            return await self._record(progress, automatic=automatic)

    async def _record(self, progress: Progress, *, automatic: bool) -> dict[MessageQueue, _Failure]:
        commits: list[tuple[Commit, QueueReader | None]] = []
        failures: dict[MessageQueue, MiniMQError] = {}
        now = time.monotonic()
        for queue, offset in progress.offsets.items():
            reader = self._readers.get(queue)
            if reader is not None:
                due = reader.commit_due(offset, progress.terms.get(queue, 0), now, automatic=automatic)
                commits += [(due, reader)] if due is not None else []
            elif queue in self._deleted:
                failures[queue] = TopicNotFound(f"topic {queue.topic} was deleted; offset {offset} is not kept")
            elif self.leased:
                text = f"queue {queue} is not this consumer's any more; offset {offset} is not kept"
                failures[queue] = Fenced(text)
            else:
                commits.append((Commit(queue, offset), None))
        answers: Mapping[MessageQueue, MiniMQError] = {
            commit.queue: Unavailable("the commit was cancelled") for commit, _ in commits
        }
        try:
            answers = await self.store.save([commit for commit, _ in commits])
        finally:
            for commit, reader in commits:
                if reader is not None:
                    reader.commit_answered(commit, now, answers.get(commit.queue))
        failures |= answers
        epochs = {commit.queue: commit.epoch for commit, _ in commits}
        return {queue: _Failure(error, epochs.get(queue, 0)) for queue, error in failures.items()}


def _order(error: MiniMQError) -> int:
    return 2 if isinstance(error, TopicNotFound) else int(isinstance(error, Fenced))
