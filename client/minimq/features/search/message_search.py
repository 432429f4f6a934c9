"""Searches a topic for messages, by a series of short calls to each of its brokers."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from minimq.admin.message_rows import store_order
from minimq.admin.values import OnProgress
from minimq.connection.client import ClusterClient
from minimq.connection.master_calls import tried
from minimq.connection.replica_selector import ReplicaSelector
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
        left: dict[str, list[_QueueSearch]] = {}
        for queue in queues:
            left.setdefault(queue.broker_name, []).append(_QueueSearch(queue))
        while not self._is_full and (asked := [each for ways in left.values() for each in ways[:_QUEUES_AT_ONCE]]):
            for way, answer in zip(asked, self._client.wait(partial(self._ask, asked)), strict=True):
                if self._failed(way, answer) if isinstance(answer, MinimqError) else self._take(way, answer):
                    left[way.queue.broker_name].remove(way)
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

    async def _ask(self, asked: Sequence[_QueueSearch]) -> list[search_pb2.FindResponse | MinimqError]:
        async def ask(way: _QueueSearch) -> search_pb2.FindResponse | MinimqError:
            request = self._request(way)

            def attempt(left_s: float) -> Coroutine[Any, Any, search_pb2.FindResponse]:
                return self._places.call(way.queue, lambda stub: stub.of(search_pb2).Find, request, left_s)

            try:
                return await tried(attempt, self._bounds.max_wait_s)
            except MinimqError as error:
                return error

        return await asyncio.gather(*map(ask, asked))

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

    def _failed(self, way: _QueueSearch, error: MinimqError) -> bool:
        if isinstance(error, AccessDenied | InvalidArgument | NoPermission):
            raise error
        self._unread.append(UnreadOffsets(way.queue, way.offset, way.end, error.message))
        return True

    def _take(self, way: _QueueSearch, answer: search_pb2.FindResponse) -> bool:
        """Take the answer about a part of a queue; return whether it was the last one."""
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
        way.offset = max(way.offset, answer.next_offset)
        return is_over

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
