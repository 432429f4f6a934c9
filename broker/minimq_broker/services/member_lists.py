"""The lists of the members of groups: their creation, and when they are sent to whom."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable

from minimq_broker.core.groups import Members
from minimq_broker.services.engine import Engine
from minimq_broker.services.session_events import SessionEvents
from minimq_broker.services.starts import GroupBeginnings
from minimq_common.large_fields import field_head
from minimq_common.slices import SLICE
from minimq_proto.v1 import broker_pb2

#: Time in seconds for which changes of a group are collected before its members are notified: members that start
#: together make one round of it, and nobody notices the delay.
ROUND_S = 0.05
#: Rounds of large groups come later, so that they use at most one part in this many of the time.
_ROUND_SHARE = 10

_MEMBERS = broker_pb2.SessionEvent.DESCRIPTOR.fields_by_name["members"].number
_HELD = broker_pb2.GroupMembers.DESCRIPTOR.fields_by_name["held"].number


class MemberLists:
    """Sends the members of groups their member lists. Lives on the event loop.

    Lists are made one after the other, so that none comes after a later one.
    """

    def __init__(
        self,
        engine: Engine,
        starts: GroupBeginnings,
        events_of: Callable[[str, str], SessionEvents | None],
        grace_ms: int,
    ) -> None:
        self._engine = engine
        self._starts = starts
        self._events_of = events_of
        self._grace_ms = grace_ms
        #: Groups whose members will be sent a new list in a moment.
        self._changed: set[str] = set()
        self._making = asyncio.Lock()
        #: Time that the latest round took, in seconds.
        self._round_took_s = 0.0
        self._is_retired = False

    def retire(self) -> None:
        """Send nothing from now on."""
        self._is_retired = True

    async def tell(self, group: str, events: SessionEvents) -> None:
        """Send one client the list of a group."""
        async with self._making:
            members = self._engine.groups.members(group)
            events.add_list(group, members.version, await self._encoded(members))

    def tell_all_soon(self, group: str) -> None:
        """Send a group its list in a moment: what changes until then makes no round of its own."""
        if group not in self._changed:
            self._changed.add(group)
            after_s = max(ROUND_S, _ROUND_SHARE * self._round_took_s)
            asyncio.get_running_loop().call_later(after_s, self._begin, group)

    def _begin(self, group: str) -> None:
        if self._is_over:  # a task that begins now might never run
            return
        self._engine.streams.receive(self._tell_all(group), "member-list")

    async def _tell_all(self, group: str) -> None:
        async with self._making:
            self._changed.discard(group)
            if self._is_over:
                return
            began = time.monotonic()
            members = self._engine.groups.members(group)
            event = await self._encoded(members)  # once for all of them
            for client_id in members.client_ids:
                events = self._events_of(group, client_id)
                if events is not None:
                    events.add_list(group, members.version, event)
            self._round_took_s = time.monotonic() - began

    @property
    def _is_over(self) -> bool:
        return self._is_retired or self._engine.handle.is_closed

    async def _encoded(self, members: Members) -> bytes:
        agreement = self._engine.groups.agreement(members.group)
        begun = self._starts.begun(members.group, agreement.topics if agreement else ())
        return await member_list(members, begun, self._grace_ms)


async def member_list(members: Members, begun: Iterable[broker_pb2.TopicBegun], grace_ms: int) -> bytes:
    """Return the list, encoded. Other tasks of the event loop run in between."""
    event = broker_pb2.GroupMembers(
        group=members.group, version=members.version, client_ids=members.client_ids, grace_ms=grace_ms, begun=begun
    )
    for client_id, topics in members.topics.items():
        event.topics.add(client_id=client_id, topics=topics)
    parts = [event.SerializeToString()]
    made = 0
    for client_id, held in members.held.items():
        # Encoded messages one after the other are the message that has the fields of all.
        entry = [broker_pb2.MemberQueues(client_id=client_id).SerializeToString()]
        for start in range(0, len(held), SLICE):
            queues = [
                broker_pb2.QueueName(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
                for queue in held[start : start + SLICE]
            ]
            entry.append(broker_pb2.MemberQueues(queues=queues).SerializeToString())
            made += len(queues)
            if made >= SLICE:  # of one member, or of many that hold little
                made = 0
                await asyncio.sleep(0)
        parts += (field_head(_HELD, sum(map(len, entry))), *entry)
    return b"".join((field_head(_MEMBERS, sum(map(len, parts))), *parts))
