"""The search for messages of one topic: a row of short calls to each of its brokers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field

from minimq.connection.client import ClusterClient
from minimq.connection.read_places import ReadPlaces
from minimq.finding.criterion import Criterion
from minimq.finding.found_messages import FoundMessages, UnreadOffsets
from minimq.finding.search_range import SearchBounds
from minimq.receiving.received import EncodedBatch, ReceivedBatch, ReceivedMessage
from minimq_common.errors import AccessDenied, CorruptBatch, InvalidArgument, MiniMQError, NoPermission
from minimq_common.model import AwayBroker, MessageQueue
from minimq_proto.v1 import find_pb2

#: Called with the number of offsets that were looked at, and of those that are known to be in the range by now.
Progress = Callable[[int, int], None]
#: Wait before a broker that did not answer is asked again, in seconds.
_AGAIN_S = 0.1
#: Queues about which one broker is asked at once, so that it has something to do while an answer is on its way.
_QUEUES_AT_ONCE = 4


@dataclass(slots=True)
class _QueueSearch:
    """The state of the search of one queue. `offset` is where it goes on, `end` is 0 until a broker has said it."""

    queue: MessageQueue
    start: int = 0
    offset: int = 0
    end: int = 0
    begun: bool = False


@dataclass(slots=True)
class _BrokerSearch:
    """The queues of one broker that are still to be searched, in their order, and since when it is silent."""

    ways: list[_QueueSearch] = field(default_factory=list)
    silent_since: float | None = None
    ask_at: float = 0.0


class MessageSearch:
    """One search. Used by one thread."""

    def __init__(
        self, client: ClusterClient, criterion: Criterion, bounds: SearchBounds, progress: Progress | None = None
    ) -> None:
        self._client = client
        self._places = ReadPlaces(client)
        self._criterion = criterion
        self._bounds = bounds
        self._progress = progress
        self._messages: list[ReceivedMessage] = []
        self._unread: list[UnreadOffsets] = []
        self._from_slaves: set[str] = set()
        self._searched = 0
        self._known = 0

    def run(self, queues: Iterable[MessageQueue], away: tuple[AwayBroker, ...]) -> FoundMessages:
        """Search the queues of a topic, at all brokers at once. Raises `MiniMQError` if that is refused."""
        brokers: dict[str, _BrokerSearch] = {}
        for queue in queues:
            brokers.setdefault(queue.broker_name, _BrokerSearch()).ways.append(_QueueSearch(queue))
        while not self._is_full and (waiting := [each for each in brokers.values() if each.ways]):
            self._round(waiting)
            if self._progress is not None:
                self._progress(self._searched, self._known)
        self._messages.sort(key=lambda each: (each.batch.stored_ms_of(each.index), each.queue, each.queue_offset))
        most = self._bounds.max_messages
        return FoundMessages(
            tuple(self._messages[:most]),
            tuple(self._unread),
            away,
            tuple(sorted(self._from_slaves)),
            self._searched,
            is_cut=self._is_full and not self._criterion.is_one,
        )

    @property
    def _is_full(self) -> bool:
        return len(self._messages) >= (1 if self._criterion.is_one else self._bounds.max_messages)

    def _round(self, brokers: list[_BrokerSearch]) -> None:
        pause = min(each.ask_at for each in brokers) - time.monotonic()
        if pause > 0:
            self._client.pause(pause)
        now = time.monotonic()
        asked = [(each, way) for each in brokers if each.ask_at <= now for way in each.ways[:_QUEUES_AT_ONCE]]
        for (broker, way), answer in zip(asked, self._client.wait(lambda: self._ask(asked)), strict=True):
            if not isinstance(answer, MiniMQError):
                broker.silent_since = None
                self._take(broker, way, answer)
            elif way in broker.ways:
                self._failed(broker, way, answer)

    async def _ask(self, asked: list[tuple[_BrokerSearch, _QueueSearch]]) -> list[find_pb2.FindResponse | MiniMQError]:
        async def ask(way: _QueueSearch) -> find_pb2.FindResponse | MiniMQError:
            try:
                return await self._places.call(
                    way.queue, lambda stub: stub.Find, self._request(way), self._bounds.patience_s
                )
            except MiniMQError as error:
                return error

        return await asyncio.gather(*(ask(way) for _, way in asked))

    def _request(self, way: _QueueSearch) -> find_pb2.FindRequest:
        request = find_pb2.FindRequest(
            topic=way.queue.topic,
            queue_id=way.queue.queue_id,
            offset=way.offset,
            end_offset=way.end,
            verify=self._bounds.verify,
        )
        if not way.begun:
            request.since_ms, request.before_ms = self._bounds.since_ms, self._bounds.before_ms
        request.MergeFrom(self._criterion.request)
        return request

    def _failed(self, broker: _BrokerSearch, way: _QueueSearch, error: MiniMQError) -> None:
        if isinstance(error, AccessDenied | InvalidArgument | NoPermission):
            raise error
        now = time.monotonic()
        if broker.silent_since is None:
            broker.silent_since = now
        if error.retriable and now - broker.silent_since < self._bounds.patience_s:
            broker.ask_at = now + max(error.retry_after_s, _AGAIN_S)
            if error.refresh_route:
                with suppress(MiniMQError):
                    self._client.routes.refresh(way.queue.topic)
            return
        for each in [way] if error.answered else list(broker.ways):
            self._unread.append(UnreadOffsets(each.queue, each.offset, each.end, error.message))
            broker.ways.remove(each)

    def _take(self, broker: _BrokerSearch, way: _QueueSearch, answer: find_pb2.FindResponse) -> None:
        if not way.begun:
            way.begun, way.start, way.end = True, answer.offset, answer.end_offset
            self._known += max(answer.end_offset - answer.offset, 0)
        if answer.from_slave:
            self._from_slaves.add(way.queue.broker_name)
        for lost in answer.unreadable:
            self._unread.append(UnreadOffsets(way.queue, lost.offset, lost.end_offset, lost.reason))
        for stored in answer.batches:
            self._open(
                way,
                EncodedBatch(
                    stored.base_offset,
                    stored.store_timestamp_ms,
                    stored.position,
                    stored.count,
                    stored.batch,
                    is_compacted=answer.is_compacted,
                ),
            )
        self._searched += max(answer.next_offset - answer.offset, 0)
        is_over = answer.next_offset >= answer.end_offset
        if is_over and answer.end_offset < way.end:  # a slave, or a new master that lacks the end
            reason = f"the replica that answered has the queue up to offset {answer.max_offset} only"
            self._unread.append(UnreadOffsets(way.queue, answer.end_offset, way.end, reason))
        if is_over:
            broker.ways.remove(way)
        way.offset = max(way.offset, answer.next_offset)

    def _open(self, way: _QueueSearch, stored: EncodedBatch) -> None:
        try:
            batch = ReceivedBatch(way.queue, stored)
            numbers = set(self._criterion.numbers_in(batch))
            if numbers:
                found = (each for each in batch.messages(max(way.offset, way.start)) if each.index in numbers)
                self._messages += (each for each in found if self._bounds.contains(batch.stored_ms_of(each.index)))
        except (CorruptBatch, InvalidArgument) as error:  # damaged, or of a newer format
            self._unread.append(
                UnreadOffsets(way.queue, stored.base_offset, stored.base_offset + stored.count, error.message)
            )
