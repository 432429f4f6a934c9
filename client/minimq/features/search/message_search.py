"""Searches a topic for messages, by a series of short calls to each of its brokers."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from minimq.admin.message_rows import store_order
from minimq.admin.values import OnProgress
from minimq.connection.client import ClusterClient
from minimq.connection.replica_selector import ReplicaSelector
from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq.features.search.search_bounds import SearchBounds
from minimq_common.batch.header import MAX_METADATA, SEPARATOR
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import AccessDenied, CorruptBatch, InvalidArgument, MinimqError, NoPermission
from minimq_common.model import MessageQueue, OfflineBroker
from minimq_common.text_units import quoted
from minimq_proto.v1 import search_pb2

_ID = re.compile(r"[0-9a-fA-F]{40}", re.ASCII)
_ID_PARTS = (16, 32)

#: Concurrent calls to one broker, so that it is busy while responses travel.
_QUEUES_AT_ONCE = 4


@dataclass(frozen=True, slots=True)
class Criterion:
    request: search_pb2.FindRequest
    matches: Callable[[RecordBatch], Sequence[int]]
    #: At most one message matches, apart from copies.
    is_one: bool = False

    def numbers_in(self, batch: ReceivedBatch) -> Iterator[int]:
        """Yield the numbers of matching records. Raises `CorruptBatch` if any text of the batch is malformed."""
        batch.check_texts()
        yield from self.matches(batch.records)


def by_key(key: object) -> Criterion:
    """Return the criterion for messages with this key. Raises `InvalidArgument` for an impossible key."""
    text = _text(key, "the key")
    wanted, separator = text.encode(), SEPARATOR.encode()

    def matches(records: RecordBatch) -> list[int]:
        found = zip(records.numbers(), records.raw_keys(), strict=True)
        return [number for number, keys in found if wanted in keys and wanted in keys.split(separator)]

    return Criterion(search_pb2.FindRequest(key=text), matches)


def by_id(message_id: object) -> Criterion:
    """Return the criterion for the message with this id. Raises `InvalidArgument` if it is no message id."""
    if not is_id(message_id):
        raise InvalidArgument(f"{quoted(message_id)} is not the id of a message: ids have 40 hexadecimal digits")
    wanted, (first, second) = str(message_id).lower(), _ID_PARTS
    number = search_pb2.MessageNumber(producer_id=int(wanted[:first], 16), sequence=int(wanted[first:second], 16))

    def matches(records: RecordBatch) -> list[int]:
        if records.origins is None:  # a record's number is the index in its id
            index = int(wanted[second:], 16)
            return [index] if index < len(records) and records.message_id(index) == wanted else []
        return [each for each in records.numbers() if records.message_id(each) == wanted]

    return Criterion(search_pb2.FindRequest(message=number), matches, is_one=True)


def by_property(name: str, value: str) -> Criterion:
    """Return the criterion for messages that have a property with this value. Raises `InvalidArgument`."""
    _text(value, "the value of the property")

    def matches(records: RecordBatch) -> list[int]:
        return [number for number in records.numbers() if records.properties(number).get(name) == value]

    return Criterion(search_pb2.FindRequest(property_value=value), matches)


def is_id(text: object) -> bool:
    return isinstance(text, str) and _ID.fullmatch(text) is not None


def _text(text: object, what: str) -> str:
    if not isinstance(text, str) or not text:
        raise InvalidArgument(f"{what} is {text!r}: give text")
    if SEPARATOR in text:
        raise InvalidArgument(f"{what} has a NUL character, which no message has there")
    if len(text) > MAX_METADATA:
        raise InvalidArgument(f"{what} has {len(text)} characters, which none has: the limit is {MAX_METADATA}")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidArgument(f"{what} has half of a surrogate pair, which no message has") from None
    return text


@dataclass(frozen=True, slots=True)
class UnreadOffsets:
    """Offsets of a queue that could not be searched; matching messages may be there."""

    queue: MessageQueue
    offset: int
    #: Exclusive.
    end_offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class FoundMessages:
    """The result of a search."""

    #: In the order of their store times.
    messages: tuple[ReceivedMessage, ...]
    unread: tuple[UnreadOffsets, ...] = ()
    #: Brokers that are offline; their queues were not searched.
    offline: tuple[OfflineBroker, ...] = ()
    #: Brokers whose slave answered, which may lack the latest messages.
    from_slaves: tuple[str, ...] = ()
    #: The number of offsets that were searched.
    searched: int = 0
    #: The search has ended at `limit`; there may be more.
    is_cut: bool = False

    @property
    def is_complete(self) -> bool:
        """True if nothing that is stored was left out."""
        return not (self.unread or self.offline or self.from_slaves or self.is_cut)


@dataclass(slots=True)
class _QueueSearch:
    """The search of one queue: continues at `offset`; `end` is 0 until a broker reports it."""

    queue: MessageQueue
    start: int = 0
    offset: int = 0
    end: int = 0
    begun: bool = False


@dataclass(slots=True)
class _BrokerSearch:
    """The remaining queues of one broker, in order, and since when it has not answered."""

    ways: list[_QueueSearch] = field(default_factory=list)
    silent_since: float | None = None
    ask_at: float = 0.0


class MessageSearch:
    """One search. Used by one thread."""

    def __init__(
        self, client: ClusterClient, criterion: Criterion, bounds: SearchBounds, progress: OnProgress | None = None
    ) -> None:
        self._client = client
        self._places = ReplicaSelector(client)
        self._criterion = criterion
        self._bounds = bounds
        self._progress = progress
        self._messages: list[ReceivedMessage] = []
        self._unread: list[UnreadOffsets] = []
        self._from_slaves: set[str] = set()
        self._searched = 0
        self._known = 0

    def run(self, queues: Iterable[MessageQueue], offline: tuple[OfflineBroker, ...]) -> FoundMessages:
        """Search the queues of a topic, at all brokers at once. Raises `MinimqError` if that is rejected."""
        brokers: dict[str, _BrokerSearch] = {}
        for queue in queues:
            brokers.setdefault(queue.broker_name, _BrokerSearch()).ways.append(_QueueSearch(queue))
        while not self._is_full and (waiting := [each for each in brokers.values() if each.ways]):
            self._round(waiting)
            if self._progress is not None:
                self._progress(self._searched, self._known)
        self._messages.sort(key=store_order)
        most = self._bounds.limit
        return FoundMessages(
            tuple(self._messages[:most]),
            tuple(self._unread),
            offline,
            tuple(sorted(self._from_slaves)),
            self._searched,
            is_cut=self._is_full and not self._criterion.is_one,
        )

    @property
    def _is_full(self) -> bool:
        return len(self._messages) >= (1 if self._criterion.is_one else self._bounds.limit)

    def _round(self, brokers: list[_BrokerSearch]) -> None:
        pause = min(each.ask_at for each in brokers) - time.monotonic()
        if pause > 0:
            self._client.pause(pause)
        now = time.monotonic()
        asked = [(each, way) for each in brokers if each.ask_at <= now for way in each.ways[:_QUEUES_AT_ONCE]]
        for (broker, way), answer in zip(asked, self._client.wait(lambda: self._ask(asked)), strict=True):
            if not isinstance(answer, MinimqError):
                broker.silent_since = None
                self._take(broker, way, answer)
            elif way in broker.ways:
                self._failed(broker, way, answer)

    async def _ask(
        self, asked: list[tuple[_BrokerSearch, _QueueSearch]]
    ) -> list[search_pb2.FindResponse | MinimqError]:
        async def ask(way: _QueueSearch) -> search_pb2.FindResponse | MinimqError:
            try:
                return await self._places.call(
                    way.queue, lambda stub: stub.of(search_pb2).Find, self._request(way), self._bounds.max_wait_s
                )
            except MinimqError as error:
                return error

        return await asyncio.gather(*(ask(way) for _, way in asked))

    def _request(self, way: _QueueSearch) -> search_pb2.FindRequest:
        request = search_pb2.FindRequest(
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

    def _failed(self, broker: _BrokerSearch, way: _QueueSearch, error: MinimqError) -> None:
        if isinstance(error, AccessDenied | InvalidArgument | NoPermission):
            raise error
        now = time.monotonic()
        if broker.silent_since is None:
            broker.silent_since = now
        if error.retriable and now - broker.silent_since < self._bounds.max_wait_s:
            broker.ask_at = now + max(error.retry_after_s, PAUSE_S)
            if error.refresh_route:
                with suppress(MinimqError):
                    self._client.routes.refresh(way.queue.topic)
            return
        for each in [way] if error.answered else list(broker.ways):
            self._unread.append(UnreadOffsets(each.queue, each.offset, each.end, error.message))
            broker.ways.remove(each)

    def _take(self, broker: _BrokerSearch, way: _QueueSearch, answer: search_pb2.FindResponse) -> None:
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
                EncodedRecords(
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

    def _open(self, way: _QueueSearch, stored: EncodedRecords) -> None:
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
