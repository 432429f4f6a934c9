"""Commits and looks up the offsets of a consumer."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from minimq.connection.connection import BrokerCalls
from minimq.connection.replica_selector import ReplicaSelector
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.queue_decisions import Commit
from minimq.consuming.queue_reader import QueueReader
from minimq_common.errors import Fenced, InvalidArgument, MinimqError, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, TopicId
from minimq_proto.v1 import broker_pb2

#: Maximum number of offsets in one request; brokers accept up to 4096.
_AT_ONCE = 1_000


class OffsetStore(Protocol):
    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MinimqError]:
        """Record offsets and wait until they are on disk. Returns the errors of queues that failed."""


def commit_request(group: str, client_id: str, commits: Sequence[Commit]) -> broker_pb2.CommitOffsetsRequest:
    """Return the request that records offsets of one broker, all with or all without a lease, all sought or none."""
    return broker_pb2.CommitOffsetsRequest(
        group=group,
        # With the client id, the broker checks the lease and rejects a former owner.
        client_id=client_id if commits[0].epoch else "",
        offsets=[
            broker_pb2.QueueOffset(
                topic=commit.queue.topic,
                queue_id=commit.queue.queue_id,
                offset=commit.offset,
                epoch=commit.epoch,
                term=commit.term,
            )
            for commit in commits
        ],
        force=commits[0].sought,
    )


@dataclass(frozen=True)
class BrokerOffsets:
    """Stores the offsets of a group, each at the broker of its queue."""

    calls: BrokerCalls
    address_of: Callable[[MessageQueue], str]
    group: str
    client_id: str
    timeout_s: float
    published: bool = False

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MinimqError]:
        failures: dict[MessageQueue, MinimqError] = {}
        calls: defaultdict[tuple[str, bool, bool], list[Commit]] = defaultdict(list)
        for commit in commits:
            try:
                address = commit.address or self.address_of(commit.queue)
                calls[address, commit.epoch > 0, commit.sought].append(commit)
            except MinimqError as error:
                failures[commit.queue] = error
        parts = [
            (address, together[start : start + _AT_ONCE])
            for (address, _, _), together in calls.items()
            for start in range(0, len(together), _AT_ONCE)
        ]
        return failures | await self._save_each(parts)

    async def _save_each(self, parts: Sequence[tuple[str, Sequence[Commit]]]) -> dict[MessageQueue, MinimqError]:
        addresses = {part: address for part, (address, _) in enumerate(parts)}
        requests = {part: self._request(commits) for part, (_, commits) in enumerate(parts)}
        _, failed = await self.calls.call_all(addresses, lambda stub: stub.CommitOffsets, requests, self.timeout_s)
        failures: dict[MessageQueue, MinimqError] = {}
        single: list[tuple[str, Sequence[Commit]]] = []
        for part, error in failed.items():
            address, commits = parts[part]
            if len(commits) == 1 or error.retriable:
                failures |= dict.fromkeys((commit.queue for commit in commits), error)
            else:  # the broker records all or none: commit one by one, so that a lost or deleted queue fails alone
                single += [(address, [commit]) for commit in commits]
        return failures | await self._save_each(single) if single else failures

    def _request(self, commits: Sequence[Commit]) -> broker_pb2.CommitOffsetsRequest:
        request = commit_request(self.group, self.client_id, commits)
        request.published = self.published
        return request


class QueueBounds(NamedTuple):
    """The stored offsets of a queue: from `first` to before `end`."""

    first: int
    end: int
    topic_id: TopicId
    term: int
    #: The first offset stored at or after the requested time, if there is one.
    at: int


async def queue_bounds(
    places: ReplicaSelector, queue: MessageQueue, timeout_s: float, timestamp_ms: int | None = None
) -> QueueBounds:
    """Return the bounds of a queue. On the event loop of the connection."""
    request = broker_pb2.DescribeTopicRequest(topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=timestamp_ms)
    described = await places.call(queue, lambda stub: stub.DescribeTopic, request, timeout_s)
    [status] = described.queues
    topic_id = TopicId(described.topic.topic_id, described.topic.created_ms)
    return QueueBounds(status.min_offset, status.max_offset, topic_id, described.term, status.offset_at)


@dataclass(frozen=True)
class OffsetLookup:
    """Looks up the bounds of queues, committed offsets, and where `start` begins. On the event loop."""

    places: ReplicaSelector
    start: broker_pb2.StartPosition
    timeout_s: float

    async def bounds(self, queue: MessageQueue, timestamp_ms: int | None = None) -> QueueBounds:
        """Return the bounds of a queue. Raises `MinimqError`."""
        try:
            return await queue_bounds(self.places, queue, self.timeout_s, timestamp_ms)
        except QueueNotFound as error:
            raise InvalidArgument(error.message) from None

    async def at(
        self, queue: MessageQueue, start: broker_pb2.StartPosition | None = None, bounds: QueueBounds | None = None
    ) -> int:
        """Return the offset at which a start position begins, by default that of the consumer. Raises as `bounds`."""
        start = start or self.start
        if start.at == broker_pb2.START_AT_TIMESTAMP:
            return (await self.bounds(queue, start.timestamp_ms)).at
        bounds = bounds or await self.bounds(queue)
        return bounds.first if start.at == broker_pb2.START_AT_EARLIEST else bounds.end

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return the committed offset of a group, if any. Raises as `bounds`."""
        request = broker_pb2.GetCommittedRequest(group=group, topic=queue.topic)
        answer = await self.places.call(queue, lambda stub: stub.GetCommitted, request, self.timeout_s)
        return next((item.offset for item in answer.offsets if item.queue_id == queue.queue_id), None)


class _Failure(NamedTuple):
    error: MinimqError
    epoch: int


#: Offsets to commit, each with the term of the log that it belongs to, which is 0 if unknown.
Progress = Mapping[MessageQueue, tuple[int, int]]


class Commits:
    """Commits the offsets of one consumer, one request at a time. Lives on the event loop of its connection."""

    def __init__(self, readers: Mapping[MessageQueue, QueueReader], store: OffsetStore) -> None:
        self.store = store
        self.leased = False
        self._readers = readers
        #: Positions of queues that were lost with uncommitted progress, until `record_all` reports them.
        self._lost_uncommitted: dict[MessageQueue, int] = {}
        #: Queues that were lost because their topic was deleted.
        self._deleted: set[MessageQueue] = set()
        #: Held during a request, so that an older offset never arrives after a newer one.
        self._turn = asyncio.Lock()

    @property
    def has_any(self) -> bool:
        """True if queues are read, or were lost with uncommitted progress."""
        return bool(self._readers or self._lost_uncommitted)

    def progress(self, offsets: Mapping[MessageQueue, int]) -> Progress:
        """Return offsets with the present terms of their readers, for a later `record`."""
        readers = self._readers
        return {
            queue: (offset, readers[queue].term_taken if queue in readers else 0) for queue, offset in offsets.items()
        }

    def progress_of_all(self) -> Progress:
        """Return the positions of all queues, except those of deleted topics, which `poll` reports."""
        offsets = {queue: reader.position for queue, reader in self._readers.items() if not reader.is_deleted}
        return self.progress(offsets)

    async def record(self, progress: Progress, *, automatic: bool = False, retry_s: float = 0.0) -> None:
        """Record offsets at their brokers, wait until they are on disk, and retry failures for up to `retry_s`.

        After a seek the offset of a queue may go back. If some offsets fail, the others are still recorded, and one
        error is raised.
        """
        failures = await self._try(progress, automatic=automatic)
        give_up = time.monotonic() + retry_s
        while failures and time.monotonic() + PAUSE_S < give_up:
            again = [queue for queue, failure in failures.items() if self._may_succeed(queue, failure)]
            if not again:
                break
            await asyncio.sleep(PAUSE_S)
            lasting = {queue: failure for queue, failure in failures.items() if queue not in again}
            failures = lasting | await self._try({queue: progress[queue] for queue in again}, automatic=automatic)
        # Lost and deleted queues no longer concern this consumer, so other errors come first.
        errors = sorted((failure.error for failure in failures.values()), key=_order)
        if errors:
            raise errors[0]

    async def record_all(self, progress: Progress, *, automatic: bool = False, retry_s: float = 0.0) -> None:
        """Record the result of `progress_of_all`. Raises `Fenced` once for queues lost with uncommitted progress."""
        try:
            await self.record(progress, automatic=automatic, retry_s=retry_s)
        except TopicNotFound:
            if not self.leased:
                raise
        lost, self._lost_uncommitted = self._lost_uncommitted, {}
        if lost:
            names = ", ".join(f"{queue} up to {offset}" for queue, offset in sorted(lost.items()))
            raise Fenced(
                f"lost queues before they were committed; their next owner rereads from the last commit: {names}"
            )

    def begins(self, queue: MessageQueue) -> None:
        self._deleted.discard(queue)

    def deleted(self, queues: Iterable[MessageQueue]) -> None:
        self._deleted.update(queues)

    def leaves(self, reader: QueueReader) -> None:
        if reader.is_uncommitted and reader.queue not in self._deleted:
            self._lost_uncommitted[reader.queue] = reader.position

    def _may_succeed(self, queue: MessageQueue, failure: _Failure) -> bool:
        reader = self._readers.get(queue)
        if isinstance(failure.error, Fenced):
            return reader is not None and reader.may_be_recorded(failure.epoch)
        return failure.error.retriable

    async def _try(self, progress: Progress, *, automatic: bool) -> dict[MessageQueue, _Failure]:
        async with self._turn:
            return await self._record(progress, automatic=automatic)

    async def _record(self, progress: Progress, *, automatic: bool) -> dict[MessageQueue, _Failure]:
        commits: list[tuple[Commit, QueueReader | None]] = []
        failures: dict[MessageQueue, MinimqError] = {}
        now = time.monotonic()
        for queue, (offset, term) in progress.items():
            reader = self._readers.get(queue)
            if reader is not None:
                due = reader.commit_due(offset, term, now, automatic=automatic)
                commits += [(due, reader)] if due is not None else []
            elif queue in self._deleted:
                failures[queue] = TopicNotFound(f"topic {queue.topic} was deleted: offset {offset} is not committed")
            elif self.leased:
                text = f"queue {queue} no longer belongs to this consumer: offset {offset} is not committed"
                failures[queue] = Fenced(text)
            else:
                commits.append((Commit(queue, offset), None))
        answers: Mapping[MessageQueue, MinimqError] = {
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


def _order(error: MinimqError) -> int:
    return 2 if isinstance(error, TopicNotFound) else int(isinstance(error, Fenced))
