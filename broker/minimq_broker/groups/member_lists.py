"""Sends the member lists of groups to their members."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.groups import Members
from minimq_broker.groups.offsets import InitialOffsets
from minimq_broker.groups.sessions import Session
from minimq_broker.log.clock import now_ms
from minimq_common.serving.periodic import slices
from minimq_proto.v1 import broker_pb2

#: Seconds for which changes of a group are collected before its members are notified: members that start together
#: cause one round of notifications. Too short to be noticed.
ROUND_S = 0.05
#: Delay of a round as a multiple of the last one's duration: rounds of large groups use at most a tenth of the time.
_ROUND_SHARE = 10


class MemberLists:
    """Sends member lists to the members of groups, one list at a time. Belongs to the event loop."""

    def __init__(self, engine: Engine, starts: InitialOffsets, grace_ms: int) -> None:
        self._engine = engine
        self._starts = starts
        self._sessions = engine.tables.sessions
        self._grace_ms = grace_ms
        #: Groups with a scheduled round.
        self._changed: set[str] = set()
        self._making = asyncio.Lock()
        #: Duration of the latest round.
        self._round_took_s = 0.0
        self._is_retired = False

    def retire(self) -> None:
        """Send nothing from now on."""
        self._is_retired = True

    async def tell(self, group: str, session: Session) -> None:
        async with self._making:
            members = self._engine.tables.groups.members(group)
            session.add_list(group, members.version, await self._encoded(members))

    def tell_all_soon(self, group: str) -> None:
        """Schedule a round for a group. Changes until then are part of it."""
        if group not in self._changed:
            self._changed.add(group)
            after_s = max(ROUND_S, _ROUND_SHARE * self._round_took_s)
            asyncio.get_running_loop().call_later(after_s, self._begin, group)

    def _begin(self, group: str) -> None:
        if self._is_over:  # a task started now might never run
            return
        self._engine.streams.receive(self._tell_all(group), "member-list")

    async def _tell_all(self, group: str) -> None:
        async with self._making:
            self._changed.discard(group)
            if self._is_over:
                return
            began = time.monotonic()
            members = self._engine.tables.groups.members(group)
            event = await self._encoded(members)  # once for all members
            for client_id in members.client_ids:
                session = self._sessions.get((group, client_id))
                if session is not None:
                    session.add_list(group, members.version, event)
            self._round_took_s = time.monotonic() - began

    @property
    def _is_over(self) -> bool:
        return self._is_retired or not self._engine.store.is_readable

    async def _encoded(self, members: Members) -> bytes:
        agreement = self._engine.tables.groups.agreement(members.group)
        begun = self._starts.begun(members.group, agreement.topics if agreement else ())
        return await member_list(members, begun, self._grace_ms)


async def member_list(members: Members, begun: Iterable[broker_pb2.TopicBegun], grace_ms: int) -> bytes:
    """Encode a member list, with pauses in which other tasks of the event loop run."""
    told = broker_pb2.GroupMembers(
        group=members.group,
        version=members.version,
        client_ids=members.client_ids,
        grace_ms=grace_ms,
        begun=begun,
        now_ms=now_ms(),
    )
    for client_id, topics in members.topics.items():
        told.topics.add(client_id=client_id, topics=topics)
    async for part in slices([(client_id, queue) for client_id, held in members.held.items() for queue in held]):
        for client_id, queue in part:
            if not told.held or told.held[-1].client_id != client_id:
                told.held.add(client_id=client_id)
            told.held[-1].queues.add(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
    return broker_pb2.SessionEvent(members=told).SerializeToString()
