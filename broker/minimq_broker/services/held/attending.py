"""Clients that attend: each is told what comes for it on one stream, such as the replies that others send."""

from __future__ import annotations

import asyncio
import logging
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Sequence, Set

import grpc.aio

from minimq_broker.services.engine import Engine
from minimq_broker.services.stream_writer import StreamWriter
from minimq_broker.services.streams import raise_failure
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.names import check_client_id, check_group
from minimq_common.properties import MIN_KEY_BYTES, inbox_of
from minimq_common.security.caller import current_caller
from minimq_proto.v1 import attend_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[attend_pb2.AttendRequest, attend_pb2.AttendEvent]
ReplyContext = grpc.aio.ServicerContext[attend_pb2.ReplyRequest, attend_pb2.ReplyResponse]


class AttendService:
    """The `Attend` call of the broker; anew with each role."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_retired = False
        self.attendants = Attendants()

    def retire(self) -> None:
        """Admit nobody any more: another role has begun."""
        self._is_retired = True

    async def serve(self, requests: AsyncIterator[attend_pb2.AttendRequest], context: Context) -> None:
        """Tell a client its events until it closes its side. Raises `NotMaster`, and `InvalidArgument`."""
        self._engine.writes.check()
        incoming = aiter(requests)
        hello = await anext(incoming, None)
        if hello is None:
            return
        if self._is_retired:
            raise Unavailable("the role of this broker has changed: attend again")
        _check(hello)
        attendant = self.attendants.new(hello, current_caller().user)
        writer: StreamWriter[attend_pb2.AttendEvent] = StreamWriter(context, self._engine.unsent)
        attendant.receiver = self._engine.streams.receive(_receive(attendant, incoming), "attend-receiver")
        attendant.tell(attend_pb2.AttendEvent(attending=attend_pb2.Attending()))
        self.attendants.enter(attendant)
        try:
            while await attendant.some():
                await writer.write(attendant.take, lambda: attendant.next_size)
        finally:
            attendant.receiver.cancel()
            self.attendants.leave(attendant)
        raise_failure(attendant.receiver)


def _check(hello: attend_pb2.AttendRequest) -> None:
    check_client_id(hello.client_id)
    if hello.inbox_key and len(hello.inbox_key) < MIN_KEY_BYTES:
        raise InvalidArgument(
            f"the key of the inbox has {len(hello.inbox_key)} bytes: it must have {MIN_KEY_BYTES}, or others guess it"
        )
    for group in hello.producer_groups:
        check_group(group)


async def _receive(attendant: Attendant, incoming: AsyncIterator[attend_pb2.AttendRequest]) -> None:
    try:
        async for _ in incoming:
            raise InvalidArgument("a client that attends says so once in a stream")
    finally:
        attendant.end()


class Attendant:
    """One client that attends, and the events that wait for it to read them. Lives on the event loop of the broker."""

    def __init__(self, hello: attend_pb2.AttendRequest, user: str, count: Callable[[int], None]) -> None:
        self.client_id = hello.client_id
        self.user = user
        self.inbox = inbox_of(hello.inbox_key) if hello.inbox_key else None
        self.producer_groups = tuple(dict.fromkeys(hello.producer_groups))
        self.producer_ids = frozenset(hello.producer_ids)
        self.unread_bytes = 0
        self.receiver: asyncio.Task[None] | None = None
        self._count = count
        self._events: deque[attend_pb2.AttendEvent] = deque()
        self._writing_bytes = 0
        self._has_ended = False
        self._waiter: asyncio.Future[None] | None = None

    def tell(self, event: attend_pb2.AttendEvent) -> None:
        """Send an event, after those that wait."""
        self._events.append(event)
        self._change(event.ByteSize())
        self._wake()

    def end(self) -> None:
        """Send what waits, and nothing more."""
        self._has_ended = True
        self._wake()

    async def some(self) -> bool:
        """Wait until an event waits; False once the stream is to end. What was taken before has been written."""
        self._change(-self._writing_bytes)
        self._writing_bytes = 0
        while not self._events:
            if self._has_ended:
                return False
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter
        return True

    @property
    def next_size(self) -> int:
        """Bytes of the next event."""
        return self._events[0].ByteSize()

    def take(self) -> attend_pb2.AttendEvent:
        """Return the next event, to be written."""
        event = self._events.popleft()
        self._writing_bytes = event.ByteSize()
        return event

    def forget(self) -> None:
        """Drop what it has not read."""
        self._events.clear()
        self._change(-self.unread_bytes)

    def _change(self, size: int) -> None:
        self.unread_bytes += size
        self._count(size)

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class Attendants:
    """All clients that attend. Lives on the event loop of the broker; anew with each role."""

    def __init__(self) -> None:
        self.unread_bytes = 0
        self._all: set[Attendant] = set()
        self._by_inbox: dict[bytes, Attendant] = {}
        self._by_producer_group: defaultdict[str, dict[Attendant, None]] = defaultdict(dict)

    def __len__(self) -> int:
        return len(self._all)

    def new(self, hello: attend_pb2.AttendRequest, user: str) -> Attendant:
        """Return a client of a user, which says who it is, to be entered."""
        return Attendant(hello, user, self._count)

    def enter(self, attendant: Attendant) -> None:
        """Add a client. It takes over its inbox: whoever has the key is the same client, in a new stream."""
        if attendant.inbox is not None:
            former = self._by_inbox.get(attendant.inbox)
            if former is not None and former.receiver is not None:
                former.receiver.cancel()
            self._by_inbox[attendant.inbox] = attendant
        for group in attendant.producer_groups:
            self._by_producer_group[group][attendant] = None
        self._all.add(attendant)

    def leave(self, attendant: Attendant) -> None:
        """Forget a client, and what it has not read."""
        attendant.forget()
        self._all.discard(attendant)
        if attendant.inbox is not None and self._by_inbox.get(attendant.inbox) is attendant:
            del self._by_inbox[attendant.inbox]
        for group in attendant.producer_groups:
            members = self._by_producer_group[group]
            members.pop(attendant, None)
            if not members:
                del self._by_producer_group[group]

    def with_inbox(self, inbox: bytes) -> Attendant | None:
        """Return the client whose inbox has this address."""
        return self._by_inbox.get(inbox)

    def of_producer_group(self, group: str) -> Sequence[Attendant]:
        """Return the clients of a producer group, the one that came first at the beginning."""
        return [*self._by_producer_group.get(group, ())]

    @property
    def producers(self) -> Set[tuple[str, int]]:
        """The producers that are there: by group, and the id under which each sends half messages."""
        return {
            (group, producer_id)
            for group, members in self._by_producer_group.items()
            for member in members
            for producer_id in member.producer_ids
        }

    def _count(self, change: int) -> None:
        self.unread_bytes += change


#: Bytes of replies that may wait for one client to read them; one batch that is larger is forwarded if nothing else
#: waits.
MAX_UNREAD_BYTES = 1 << 20
#: Bytes that may wait for all clients; with more, each gets small batches, and those if it has read all before.
MAX_UNREAD_IN_ALL = 64 << 20
_SMALL_BYTES = 64 << 10
#: Bytes that a batch with one reply has besides the body, at most: its properties, of which a message has as many.
_AROUND_BODY = 256 << 10

FORWARDED = attend_pb2.REPLY_OUTCOME_FORWARDED
NOT_OPEN = attend_pb2.REPLY_OUTCOME_NOT_OPEN
UNREAD = attend_pb2.REPLY_OUTCOME_UNREAD
TOO_LARGE = attend_pb2.REPLY_OUTCOME_TOO_LARGE

_NAMES = {FORWARDED: "forwarded", NOT_OPEN: "not-open", UNREAD: "unread", TOO_LARGE: "too-large"}


class ReplyService:
    """The `Reply` call of the broker; anew with each role."""

    def __init__(self, engine: Engine, attendants: Attendants) -> None:
        self._engine = engine
        self._attendants = attendants

    async def serve(self, requests: AsyncIterator[attend_pb2.ReplyRequest], context: ReplyContext) -> None:
        """Forward replies until the client closes its side. Raises `NotMaster`."""
        self._engine.writes.check()
        writer: StreamWriter[attend_pb2.ReplyResponse] = StreamWriter(context, self._engine.unsent)
        receiver = self._engine.streams.receive(self._receive(requests, writer), "reply-receiver")
        try:
            await asyncio.wait((receiver,))
        finally:
            receiver.cancel()
        await writer.drained()
        raise_failure(receiver)

    async def _receive(
        self, requests: AsyncIterator[attend_pb2.ReplyRequest], writer: StreamWriter[attend_pb2.ReplyResponse]
    ) -> None:
        async for request in requests:
            if (rate := current_caller().received) is not None:
                await rate.turn()
                rate.moved(request.ByteSize())
            outcomes = [self._forward(item) for item in request.inboxes]
            response = attend_pb2.ReplyResponse(request_id=request.request_id, outcomes=outcomes)
            await writer.write(response.SerializeToString)

    def _forward(self, item: attend_pb2.InboxReplies) -> attend_pb2.ReplyOutcome.ValueType:
        outcome = self._try(item, len(item.replies))
        self._engine.counters.replies[_NAMES[outcome]] += item.count
        return outcome

    def _try(self, item: attend_pb2.InboxReplies, size: int) -> attend_pb2.ReplyOutcome.ValueType:
        if size > self._engine.limits.max_body_bytes + _AROUND_BODY:
            return TOO_LARGE
        attendant = self._attendants.with_inbox(item.inbox)
        if attendant is None:
            return NOT_OPEN
        if attendant.unread_bytes and attendant.unread_bytes + size > MAX_UNREAD_BYTES:
            return UNREAD
        if self._attendants.unread_bytes + size > MAX_UNREAD_IN_ALL and (attendant.unread_bytes or size > _SMALL_BYTES):
            return UNREAD
        attendant.tell(attend_pb2.AttendEvent(replies=item.replies))
        return FORWARDED


def outcome_names() -> Sequence[str]:
    """Return what may become of replies, by the names that metrics give it."""
    return [*_NAMES.values()]
