"""The clients that attend: by their inbox, and by the producer groups that they belong to."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Callable, Sequence, Set

from minimq_common.reply_address import inbox_of
from minimq_proto.v1 import attend_pb2


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
