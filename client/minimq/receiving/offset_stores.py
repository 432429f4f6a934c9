"""The offsets of consumers: recorded at brokers or in a file, and looked up where a queue is begun."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, Protocol

from minimq.connection.broker_calls import BrokerCalls
from minimq.connection.read_places import ReadPlaces
from minimq.receiving.queue_decisions import Commit
from minimq_common.errors import InvalidArgument, MiniMQError, QueueNotFound
from minimq_common.model import MessageQueue, TopicId
from minimq_proto.v1 import broker_pb2

#: Offsets that one call records: a tenth of what brokers take.
_AT_ONCE = 1_000


class OffsetStore(Protocol):
    """Records offsets. Used on the event loop of the connection."""

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets, as many as possible, and wait until they are on disk."""


class BrokerOffsets:
    """The offsets of a group: each at the broker of its queue."""

    def __init__(
        self,
        calls: BrokerCalls,
        address_of: Callable[[MessageQueue], str],
        group: str,
        client_id: str,
        timeout_s: float,
        *,
        published: bool = False,
    ) -> None:
        self._published = published
        self._calls = calls
        self._address_of = address_of
        self._group = group
        self._client_id = client_id
        self._timeout_s = timeout_s

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets; see `OffsetStore.save`."""
        failures: dict[MessageQueue, MiniMQError] = {}
        calls: defaultdict[tuple[str, bool, bool], list[Commit]] = defaultdict(list)
        for commit in commits:
            try:
                address = commit.address or self._address_of(commit.queue)
                calls[address, commit.epoch > 0, commit.sought].append(commit)
            except MiniMQError as error:
                failures[commit.queue] = error
        parts = [
            (address, together[start : start + _AT_ONCE])
            for (address, _, _), together in calls.items()
            for start in range(0, len(together), _AT_ONCE)
        ]
        return failures | await self._save_each(parts)

    async def _save_each(self, parts: Sequence[tuple[str, Sequence[Commit]]]) -> dict[MessageQueue, MiniMQError]:
        addresses = {part: address for part, (address, _) in enumerate(parts)}
        requests = {part: self._request(commits) for part, (_, commits) in enumerate(parts)}
        _, failed = await self._calls.call_all(addresses, lambda stub: stub.CommitOffsets, requests, self._timeout_s)
        failures: dict[MessageQueue, MiniMQError] = {}
        single: list[tuple[str, Sequence[Commit]]] = []
        for part, error in failed.items():
            address, commits = parts[part]
            if len(commits) == 1 or error.retriable:
                failures |= dict.fromkeys((commit.queue for commit in commits), error)
            else:  # it takes all or none; those queues that were not lost or deleted shall not suffer for others
                single += [(address, [commit]) for commit in commits]
        return failures | await self._save_each(single) if single else failures

    def _request(self, commits: Sequence[Commit]) -> broker_pb2.CommitOffsetsRequest:
        return broker_pb2.CommitOffsetsRequest(
            group=self._group,
            # In its name a commit needs the lease, so a former owner is refused.
            client_id=self._client_id if commits[0].epoch else "",
            offsets=[
                broker_pb2.QueueOffset(
                    topic=commit.queue.topic,
                    queue_id=commit.queue.queue_id,
                    offset=commit.offset,
                    epoch=commit.epoch,
                    term=commit.term,
                    tries=commit.tries,
                    in_hand_end=commit.in_hand_end,
                )
                for commit in commits
            ],
            force=commits[0].sought,
            published=self._published,
        )


class QueueBounds(NamedTuple):
    """The offsets that are stored in a queue."""

    first: int
    #: The one after the last.
    end: int
    topic_id: TopicId
    term: int


async def queue_bounds(places: ReadPlaces, queue: MessageQueue, timeout_s: float) -> QueueBounds:
    """Ask what is stored in a queue, on the event loop of the connection."""
    request = broker_pb2.DescribeTopicRequest(topic=queue.topic)
    described = await places.call(queue, lambda stub: stub.DescribeTopic, request, timeout_s)
    if not 0 <= queue.queue_id < len(described.queues):
        raise QueueNotFound(f"queue {queue} does not exist: its broker has 0 to {len(described.queues) - 1}")
    status = described.queues[queue.queue_id]
    topic_id = TopicId(described.topic.topic_id, described.topic.created_ms)
    return QueueBounds(status.min_offset, status.max_offset, topic_id, described.term)


class OffsetLookup:
    """The questions for offsets: what is stored, what a group has recorded, where the start rule begins.

    Its coroutines run on the event loop of the connection.
    """

    def __init__(self, places: ReadPlaces, start: broker_pb2.StartPosition, timeout_s: float) -> None:
        self._places = places
        self._start = start
        self._timeout_s = timeout_s

    async def bounds(self, queue: MessageQueue) -> QueueBounds:
        """Return what is stored in a queue."""
        try:
            return await queue_bounds(self._places, queue, self._timeout_s)
        except QueueNotFound as error:
            raise InvalidArgument(error.message) from None

    async def by_rule(self, queue: MessageQueue, bounds: QueueBounds) -> int:
        """Return where the rule has a queue begin. Raises as `bounds`."""
        return await self._resolve(queue, self._start, bounds)

    async def at(self, queue: MessageQueue, start: broker_pb2.StartPosition) -> int:
        """Return which offset a position has in a queue. Raises as `bounds`."""
        return await self._resolve(queue, start, await self.bounds(queue))

    async def _resolve(self, queue: MessageQueue, start: broker_pb2.StartPosition, bounds: QueueBounds) -> int:
        if start.at == broker_pb2.START_AT_EARLIEST:
            return bounds.first
        if start.at == broker_pb2.START_AT_LATEST:
            return bounds.end
        request = broker_pb2.GetOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=start.timestamp_ms
        )
        answer = await self._places.call(queue, lambda stub: stub.GetOffset, request, self._timeout_s)
        return answer.offset

    async def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return what a group has recorded at the broker of a queue. Raises as `bounds`."""
        request = broker_pb2.GetCommittedRequest(group=group, topic=queue.topic)
        answer = await self._places.call(queue, lambda stub: stub.GetCommitted, request, self._timeout_s)
        return next((item.offset for item in answer.offsets if item.queue_id == queue.queue_id), None)
