"""The deletion of consumer groups: on request, or because they were unused for too long."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minimq_broker.calls.engine import Engine
from minimq_broker.groups.group_service import check_idle, expires_ms
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.session import SessionService
from minimq_broker.state.facts import Fact, GroupDeleted
from minimq_broker.state.state import State
from minimq_common.names import check_group, dead_letter_topic, retry_topic
from minimq_common.serving.periodic import slices
from minimq_common.text_units import listed
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Maximum interval of checks for idle groups. With a short expiry there are `_CHECKS_PER_EXPIRY` checks in that time.
_CHECK_INTERVAL_S = 60.0
_CHECKS_PER_EXPIRY = 20
#: Maximum groups that one check deletes; the next check continues.
_DELETE_MAX = 100
#: Maximum groups that one line of the log names.
_NAMED = 5


class GroupDeletion:
    """Deletes groups. Belongs to the loop of the engine."""

    def __init__(
        self,
        engine: Engine,
        sessions: SessionService,
        expiry: GroupExpiry,
        offline_s: float,
        clock_ms: Callable[[], int] | None = None,
    ) -> None:
        self._engine = engine
        self._sessions = sessions
        self._expiry = expiry
        self._loop = asyncio.get_running_loop()
        self._members_are_back_at = self._loop.time() + min(offline_s, expiry.idle_ms / 1000)
        self._clock_ms = clock_ms or engine.clock.now_ms

    # ---- on request -----------------------------------------------------------------------------

    async def delete(self, request: broker_pb2.DeleteGroupRequest) -> broker_pb2.DeleteGroupResponse:
        """Delete a group, and its dead letters if requested. With `force`, its members continue as a new group."""
        group = check_group(request.group)
        if not request.force:
            check_idle(self._engine, group, self._engine.tables.leases.of_group(group), "deletion")
        has_members = bool(self._engine.tables.groups.members(group).client_ids)
        own = [] if has_members else [retry_topic(group)]
        own += [dead_letter_topic(group)] if request.dead_letters else []

        def decide(state: State) -> Fact | None:
            topics = tuple(name for name in own if name in state.topics)
            return GroupDeleted(group, topics) if topics or state.has_group(group) else None

        fact = await self._delete(group, decide)
        return broker_pb2.DeleteGroupResponse(deleted=fact is not None, data_version=self._engine.versions.answered)

    async def _delete(self, group: str, decide: Callable[[State], Fact | None]) -> Fact | None:
        fact = await self._engine.writes.record(decide)
        if fact is not None:
            await self._sessions.begin_anew(group)  # even without `force`: a member may have joined just now
        return fact

    # ---- by time --------------------------------------------------------------------------------

    @property
    def look_every_s(self) -> float:
        """Seconds between two checks for idle groups."""
        return min(_CHECK_INTERVAL_S, self._expiry.idle_ms / 1000 / _CHECKS_PER_EXPIRY)

    async def look(self) -> None:
        """Delete groups that have been idle for too long. Raises `NotMaster`."""
        self._engine.writes.check()
        state, now = self._engine.store.state, self._clock_ms()
        deleted = list[str]()
        try:
            async for part in slices(sorted(state.known_groups())):
                for group in part:
                    if await self._look_at(group, state, now):
                        deleted.append(group)
                    if len(deleted) == _DELETE_MAX:
                        return
        finally:
            if deleted:
                idle_s = self._expiry.idle_ms // 1000
                text = "group: deleted, unused count=%d groups=%s seconds=%d"
                log.warning(text, len(deleted), listed(deleted, _NAMED, ","), idle_s)

    async def _look_at(self, group: str, state: State, now: int) -> bool:
        is_over = self._loop.time() >= self._members_are_back_at
        if group in state.agreements and is_over and not self._engine.tables.claims.clients(group):
            self._sessions.keep_agreement(group)  # its members were here before the broker started
        due_ms = expires_ms(self._engine, self._expiry, group)
        if due_ms is None or due_ms > now:
            return False

        def decide(state: State) -> Fact | None:
            if self._expiry.expires_ms(state, group, has_members=False) != due_ms:
                return None  # the group was used meanwhile
            return GroupDeleted(group, tuple(name for name in (retry_topic(group),) if name in state.topics))

        return await self._delete(group, decide) is not None
