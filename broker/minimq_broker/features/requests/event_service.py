"""Clients that attend: each receives events on one stream, such as replies to its requests."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator, Sequence, Set
from typing import Any

import grpc.aio

from minimq_broker.calls.append import MAX_WAITING
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import AnswerStream
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.names import check_client_id, check_group
from minimq_common.properties import MIN_KEY_BYTES, inbox_of
from minimq_proto.v1 import events_pb2

Context = grpc.aio.ServicerContext[events_pb2.EventsRequest, events_pb2.ClientEvent]
ReplyContext = grpc.aio.ServicerContext[events_pb2.ReplyRequest, events_pb2.ReplyResponse]


class _UnbatchedStream(AnswerStream):
    """Answers that are written one per message."""

    def __init__(self, context: Any, engine: Engine) -> None:
        super().__init__(context, bytes, engine.writes.soon, engine.unsent)

    def next_size(self) -> int:
        return int(self._answers[0].ByteSize())

    def take(self) -> bytes:
        return bytes(self._answers.pop(0).SerializeToString())


class EventClient(_UnbatchedStream):
    """One client that attends, and the events that wait for it. Belongs to the event loop."""

    def __init__(self, hello: events_pb2.EventsRequest, context: Any, engine: Engine, every: EventClients) -> None:
        super().__init__(context, engine)
        self.client_id = hello.client_id
        self.inbox = inbox_of(hello.inbox_key) if hello.inbox_key else None
        self.producer_groups = tuple(dict.fromkeys(hello.producer_groups))
        self.producer_ids = frozenset(hello.producer_ids)
        self.unread_bytes = 0
        self._every = every

    def add(self, event: events_pb2.ClientEvent) -> None:
        """Queue an event; ignored after the end of the stream."""
        if not self.is_closed:
            self._account(event.ByteSize())
            super().add(event)

    def take(self) -> bytes:
        """Return the next event, and count it as read, because it is about to be written."""
        data = super().take()
        self._account(-len(data))
        return data

    def close(self) -> None:
        super().close()
        self._answers.clear()
        self._account(-self.unread_bytes)

    def hand_over(self, later: EventClient) -> None:
        """Close, and move waiting replies to a later stream of the same client."""
        waiting = [event for event in self._answers if event.HasField("replies")]
        self.close()
        for event in waiting:
            later.add(event)

    def _account(self, size: int) -> None:
        self.unread_bytes += size
        self._every.unread_bytes += size


class EventClients:
    """All clients that attend during one role. Belongs to the event loop."""

    def __init__(self) -> None:
        #: Of all clients.
        self.unread_bytes = 0
        self.by_inbox: dict[bytes, EventClient] = {}
        self._by_producer_group: defaultdict[str, dict[EventClient, None]] = defaultdict(dict)

    def enter(self, attendant: EventClient) -> None:
        """Add a client. It takes over its inbox: only the same client, in a new stream, has the same key."""
        if attendant.inbox is not None:
            former = self.by_inbox.get(attendant.inbox)
            if former is not None:
                former.hand_over(attendant)
            self.by_inbox[attendant.inbox] = attendant
        for group in attendant.producer_groups:
            self._by_producer_group[group][attendant] = None

    def leave(self, attendant: EventClient) -> None:
        if attendant.inbox is not None and self.by_inbox.get(attendant.inbox) is attendant:
            del self.by_inbox[attendant.inbox]
        for group in attendant.producer_groups:
            members = self._by_producer_group[group]
            members.pop(attendant, None)
            if not members:
                del self._by_producer_group[group]

    def of_producer_group(self, group: str) -> Sequence[EventClient]:
        """Return the clients of a producer group in the order in which they came."""
        return [*self._by_producer_group.get(group, ())]

    @property
    def producers(self) -> Set[tuple[str, int]]:
        """The connected producers: group, and the producer id of its half messages."""
        return {
            (group, producer_id)
            for group, members in self._by_producer_group.items()
            for member in members
            for producer_id in member.producer_ids
        }


class EventService:
    """The `Events` call of the broker during one role."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_retired = False
        self.attendants = EventClients()

    def retire(self) -> None:
        """Reject new clients: another role has begun."""
        self._is_retired = True

    async def serve(self, requests: AsyncIterator[events_pb2.EventsRequest], context: Context) -> None:
        """Send a client its events until it closes its side. Raises `NotMaster`, `InvalidArgument`, `Unavailable`."""
        self._engine.writes.check()
        incoming = aiter(requests)
        hello = await anext(incoming, None)
        if hello is None:
            return
        if self._is_retired:
            raise Unavailable("the role of this broker has changed: open the event stream again")
        _check(hello)
        attendant = EventClient(hello, context, self._engine, self.attendants)
        attendant.add(events_pb2.ClientEvent(opened=events_pb2.EventsOpened()))
        self.attendants.enter(attendant)
        try:
            await self._engine.streams.serve(_receive(incoming), "events-receiver", attendant)
        finally:
            self.attendants.leave(attendant)


def _check(hello: events_pb2.EventsRequest) -> None:
    check_client_id(hello.client_id)
    if hello.inbox_key and len(hello.inbox_key) < MIN_KEY_BYTES:
        raise InvalidArgument(
            f"the key of the inbox has {len(hello.inbox_key)} bytes: it needs {MIN_KEY_BYTES}, to be hard to guess"
        )
    for group in hello.producer_groups:
        check_group(group)


async def _receive(incoming: AsyncIterator[events_pb2.EventsRequest]) -> None:
    async for _ in incoming:
        raise InvalidArgument("a client sends only one request on a stream of Events")


#: Bytes of unread replies per client. A larger batch is still forwarded if nothing else waits.
MAX_UNREAD_BYTES = 1 << 20
#: Unread bytes of all clients. Beyond this, a client gets only small batches, and only after it has read all others.
MAX_UNREAD_IN_ALL = 64 << 20
_SMALL_BYTES = 64 << 10
#: Maximum bytes of a batch with one reply besides its body.
_MAX_PROPERTY_BYTES = 256 << 10

FORWARDED = events_pb2.REPLY_OUTCOME_FORWARDED
NOT_OPEN = events_pb2.REPLY_OUTCOME_NOT_OPEN
UNREAD = events_pb2.REPLY_OUTCOME_UNREAD
TOO_LARGE = events_pb2.REPLY_OUTCOME_TOO_LARGE

#: The names of outcomes in metrics.
OUTCOME_NAMES = {FORWARDED: "forwarded", NOT_OPEN: "not-open", UNREAD: "unread", TOO_LARGE: "too-large"}


class ReplyService:
    """The `Reply` call of the broker during one role."""

    def __init__(self, engine: Engine, attendants: EventClients) -> None:
        self._engine = engine
        self._attendants = attendants

    async def serve(self, requests: AsyncIterator[events_pb2.ReplyRequest], context: ReplyContext) -> None:
        """Forward replies until the client closes its side. Raises `NotMaster`."""
        self._engine.writes.check()
        answers = _UnbatchedStream(context, self._engine)
        await self._engine.streams.serve(self._receive(requests, answers), "reply-receiver", answers)

    async def _receive(self, requests: AsyncIterator[events_pb2.ReplyRequest], answers: AnswerStream) -> None:
        async for request in requests:
            outcomes = [self._forward(item) for item in request.inboxes]
            answers.add(events_pb2.ReplyResponse(request_id=request.request_id, outcomes=outcomes))
            await answers.fewer(MAX_WAITING)

    def _forward(self, item: events_pb2.InboxReplies) -> events_pb2.ReplyOutcome.ValueType:
        outcome = self._try(item, len(item.replies))
        self._engine.counters.replies[OUTCOME_NAMES[outcome]] += item.count
        return outcome

    def _try(self, item: events_pb2.InboxReplies, size: int) -> events_pb2.ReplyOutcome.ValueType:
        if size > self._engine.limits.max_body_bytes + _MAX_PROPERTY_BYTES:
            return TOO_LARGE
        attendant = self._attendants.by_inbox.get(item.inbox)
        if attendant is None:
            return NOT_OPEN
        if attendant.unread_bytes and attendant.unread_bytes + size > MAX_UNREAD_BYTES:
            return UNREAD
        if self._attendants.unread_bytes + size > MAX_UNREAD_IN_ALL and (attendant.unread_bytes or size > _SMALL_BYTES):
            return UNREAD
        attendant.add(events_pb2.ClientEvent(replies=item.replies))
        return FORWARDED
