"""The configurations of groups, kept in the log: the next start, or master, refuses whom this one has refused."""

from __future__ import annotations

import logging

from minimq_broker.core.facts import GroupAgreed
from minimq_broker.services.role_tables import RoleTables
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.services.streams import Streams
from minimq_broker.services.writes import Writes
from minimq_common.errors import MiniMQError

log = logging.getLogger(__name__)


class Agreements:
    """Records what groups agree on when it changes: the first member comes, a lone one changes it, the last one goes.

    Nobody waits for that. It stands in the log ahead of all that a member does after it was granted a queue. Not
    thread-safe: it belongs to the loop of the engine.
    """

    def __init__(self, handle: StoreHandle, writes: Writes, tables: RoleTables, streams: Streams) -> None:
        self._handle, self._writes, self._tables, self._streams = handle, writes, tables, streams
        #: What is not in the state yet, by group.
        self._on_its_way: dict[str, GroupAgreed] = {}

    def keep(self, group: str) -> None:
        """See to it that what a group agrees on now is in the log."""
        agreement = self._tables.groups.agreement(group)
        before = self._on_its_way.get(group)
        known = before.agreement if before else self._handle.any_store.state.agreements.get(group)
        if agreement == known or self._handle.is_slave:  # which serves groups without a master, and records nothing
            return
        fact = self._on_its_way[group] = GroupAgreed(group, agreement)
        self._streams.receive(self._record(fact), "agreement")

    async def _record(self, fact: GroupAgreed) -> None:
        try:
            await self._writes.record(lambda _: fact, alone=False)
        except MiniMQError as error:
            log.warning("group: what it agrees on is not kept group=%s reason=%s", fact.group, error)
        finally:
            if self._on_its_way.get(fact.group) is fact:
                del self._on_its_way[fact.group]
