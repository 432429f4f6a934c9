"""Where a queue is begun when nothing is recorded for it."""

from __future__ import annotations

from typing import NamedTuple

from minimq.routes.read_places import ReadPlaces
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


class Bounds(NamedTuple):
    """What is stored in a queue.

    Attributes:
        first: first offset.
        end: the one after the last.
        topic_id: of the topic at the broker of the queue: another one after it was deleted and made again.
        term: the latest one in the log of which that is.
    """

    first: int
    end: int
    topic_id: int
    term: int


class StartOffsets:
    """Asks the broker of a queue. Thread-safe.

    Args:
        places: where the queues are read.
        start: the rule.
        timeout_s: for one call.
    """

    def __init__(self, places: ReadPlaces, start: broker_pb2.StartPosition, timeout_s: float) -> None:
        self._places = places
        self._start = start
        self._timeout_s = timeout_s

    def bounds(self, queue: MessageQueue) -> Bounds:
        """Return what is stored in a queue.

        Raises:
            InvalidArgument: there is no such queue.
            TopicNotFound, Unavailable: the broker cannot be asked.
        """
        request = broker_pb2.DescribeTopicRequest(topic=queue.topic)
        described = self._places.call(queue, lambda stub: stub.DescribeTopic, request, self._timeout_s)
        if not 0 <= queue.queue_id < len(described.queues):
            raise InvalidArgument(f"queue {queue} does not exist: its broker has 0 to {len(described.queues) - 1}")
        status = described.queues[queue.queue_id]
        return Bounds(status.min_offset, status.max_offset, described.topic.topic_id, described.term)

    def by_rule(self, queue: MessageQueue, bounds: Bounds) -> int:
        """Return where the rule has a queue begin. Raises as `bounds`."""
        return self._resolve(queue, self._start, bounds)

    def at(self, queue: MessageQueue, start: broker_pb2.StartPosition) -> int:
        """Return which offset a position has in a queue. Raises as `bounds`."""
        return self._resolve(queue, start, self.bounds(queue))

    def _resolve(self, queue: MessageQueue, start: broker_pb2.StartPosition, bounds: Bounds) -> int:
        if start.at == broker_pb2.START_AT_EARLIEST:
            return bounds.first
        if start.at == broker_pb2.START_AT_LATEST:
            return bounds.end
        request = broker_pb2.GetOffsetRequest(
            topic=queue.topic, queue_id=queue.queue_id, timestamp_ms=start.timestamp_ms
        )
        return self._places.call(queue, lambda stub: stub.GetOffset, request, self._timeout_s).offset

    def committed(self, group: str, queue: MessageQueue) -> int | None:
        """Return what a group has recorded at the broker of a queue. Raises as `bounds`."""
        request = broker_pb2.GetCommittedRequest(group=group, topic=queue.topic)
        answer = self._places.call(queue, lambda stub: stub.GetCommitted, request, self._timeout_s)
        return next((item.offset for item in answer.offsets if item.queue_id == queue.queue_id), None)
