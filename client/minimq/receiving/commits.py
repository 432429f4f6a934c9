"""Recording how far a consumer is: what has changed, under which leases, and what was lost before it was recorded."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Mapping
from typing import NamedTuple

from minimq.receiving.fetcher import Fetcher
from minimq.receiving.offset_stores import Commit, OffsetStore
from minimq_common.errors import Fenced, MiniMQError
from minimq_common.model import MessageQueue

#: Wait before what was not recorded is tried again, in seconds.
_RETRY_S = 0.2


class _Failure(NamedTuple):
    """Why an offset was not recorded, and under which lease that was tried."""

    error: MiniMQError
    epoch: int


class Commits:
    """The commits of one consumer. Thread-safe: it looks at the fetchers under their lock, and records without it.

    Args:
        lock: of the fetchers.
        fetchers: the queues that are read.
        store: where offsets are recorded.
        repeat_s: seconds after which an automatic commit repeats an offset that has not changed.

    Attributes:
        store: may be replaced before the first queue is read.
        leased: whether queues are read and committed under leases, as a member of the group does.
    """

    def __init__(
        self, lock: threading.Condition, fetchers: Mapping[MessageQueue, Fetcher], store: OffsetStore, repeat_s: float
    ) -> None:
        self.store = store
        self._repeat_s = repeat_s
        self.leased = False
        self._lock = lock
        self._fetchers = fetchers
        #: Queues that left before what was handed out of them was recorded, and how far it was.
        self._left_behind: dict[MessageQueue, int] = {}

    def record(self, offsets: Mapping[MessageQueue, int], *, automatic: bool = False, patience_s: float = 0.0) -> None:
        """Record offsets at their brokers and wait until they are on disk.

        After a seek the offset of a queue may go back. What can be recorded is, also when a broker does not answer or a
        queue was lost.

        Args:
            offsets: the next offset that the group will read, by queue.
            automatic: nobody has asked for it: leave out what this consumer has recorded lately. The broker may have
                another offset by now, or none, when somebody has reset or deleted the group.
            patience_s: for how long what has failed is tried again, if it may pass then: a broker gets another master,
                at which the lease is renewed.

        Raises:
            Fenced: another member owns a queue.
            OffsetOutOfRange: the messages before an offset were lost with a master; the reader goes back.
            MiniMQError: a broker refused or did not answer; the first of several such errors, before `Fenced`.
        """
        with self._lock:  # the offsets are of the log that was read by now, also when they are recorded later
            terms = {queue: fetcher.term_taken for queue, fetcher in self._fetchers.items() if queue in offsets}
        failures = self._try(offsets, terms, automatic=automatic)
        give_up = time.monotonic() + patience_s
        while failures and time.monotonic() + _RETRY_S < give_up:
            with self._lock:
                again = [queue for queue, failure in failures.items() if self._may_pass(queue, failure)]
            if not again:
                break
            time.sleep(_RETRY_S)
            lasting = {queue: failure for queue, failure in failures.items() if queue not in again}
            failures = lasting | self._try({queue: offsets[queue] for queue in again}, terms, automatic=automatic)
        # A queue that was lost is no longer this consumer's matter: what else has failed comes first.
        errors = sorted((failure.error for failure in failures.values()), key=lambda error: isinstance(error, Fenced))
        if errors:
            raise errors[0]

    def _may_pass(self, queue: MessageQueue, failure: _Failure) -> bool:
        """Tell whether another try may go well; needs the lock."""
        fetcher = self._fetchers.get(queue)
        if isinstance(failure.error, Fenced):  # the lease may have been renewed, or wait for that
            return fetcher is not None and (fetcher.epoch != failure.epoch or not math.isinf(fetcher.sure_until))
        return failure.error.retriable

    def _try(
        self, offsets: Mapping[MessageQueue, int], terms: Mapping[MessageQueue, int], *, automatic: bool
    ) -> dict[MessageQueue, _Failure]:
        """Record what can be recorded now; return what cannot."""
        commits: list[Commit] = []
        failures: dict[MessageQueue, MiniMQError] = {}
        now = time.monotonic()
        with self._lock:
            fetchers = {queue: self._fetchers.get(queue) for queue in offsets}
            for queue, offset in offsets.items():
                fetcher = fetchers[queue]
                if fetcher is None and self.leased:
                    text = f"queue {queue} is not this consumer's any more; offset {offset} is not kept"
                    failures[queue] = Fenced(text)
                elif fetcher is None:
                    commits.append(Commit(queue, offset))
                elif not automatic or fetcher.committed != offset or now - fetcher.committed_at >= self._repeat_s:
                    lease = fetcher.epoch, fetcher.topic_id
                    commits.append(
                        Commit(queue, offset, *lease, fetcher.sought, fetcher.leased_by, terms.get(queue, 0))
                    )
                    fetcher.sought = False  # a seek that comes meanwhile is for the next commit
        failures |= self.store.save(commits)
        with self._lock:
            for commit in commits:
                fetcher = fetchers[commit.queue]
                if fetcher is not None:
                    _take_note(fetcher, commit, now, failed=commit.queue in failures)
        epochs = {commit.queue: commit.epoch for commit in commits}
        return {queue: _Failure(error, epochs.get(queue, 0)) for queue, error in failures.items()}

    def record_all(
        self, instead: Mapping[MessageQueue, int], *, automatic: bool = False, patience_s: float = 0.0
    ) -> None:
        """Record where the reader is in all queues, but for some with offsets of their own if they are still read.

        Raises:
            MiniMQError: as `record`.
            Fenced: queues have left before what was handed out of them was recorded; said once.
        """
        with self._lock:
            positions = {queue: fetcher.position for queue, fetcher in self._fetchers.items()}
        offsets = {queue: instead.get(queue, position) for queue, position in positions.items()}
        self.record(offsets, automatic=automatic, patience_s=patience_s)
        with self._lock:
            lost, self._left_behind = self._left_behind, {}
        if lost:
            names = ", ".join(f"{queue} up to {offset}" for queue, offset in sorted(lost.items()))
            raise Fenced(
                f"queues have left before they were committed, and are read again from their last commit: {names}"
            )

    def leaves(self, fetcher: Fetcher) -> None:
        """A queue is read no more. The caller holds the lock."""
        if fetcher.epoch and (fetcher.unsaved or fetcher.sought):
            self._left_behind[fetcher.queue] = fetcher.position


def _take_note(fetcher: Fetcher, commit: Commit, now: float, *, failed: bool) -> None:
    if failed:
        fetcher.committed = None  # the broker may have it all the same
        fetcher.sought |= commit.sought
    else:
        fetcher.committed, fetcher.committed_at = commit.offset, now
        fetcher.unsaved &= commit.offset < fetcher.position
