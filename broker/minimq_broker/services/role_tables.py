"""The groups of a broker: the tables of its present role, and their part in the log."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from minimq_broker.core.facts import GroupAgreed
from minimq_broker.core.groups import GroupTable, Remembered
from minimq_broker.core.leases import LeaseTable, Recovery
from minimq_broker.core.popping.poppers import Poppers
from minimq_broker.core.state import State
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.services.streams import Streams
from minimq_broker.services.writes import Writes
from minimq_common.errors import MiniMQError
from minimq_common.model import first_epoch


class RoleTables:
    """The tables of the present role. Belongs to the event loop."""

    def __init__(self, term: int, state: Callable[[], State], recovery_s: float) -> None:
        self._state = state
        self._recovery_s = recovery_s
        self._loop = asyncio.get_running_loop()
        self._term = term
        #: What was added to data versions by states that were replaced, and by roles.
        self._versions_before = 0
        self.groups: GroupTable
        self.leases: LeaseTable
        self.poppers: Poppers
        self._set()

    # Versions of a later run are larger: a name server that holds one of an earlier run takes this broker in its place.

    @property
    def data_version(self) -> int:
        """The least version of what is registered from the state after this was read."""
        return (self._term << 32) + self._versions_before + self._state().made

    @property
    def answered_version(self) -> int:
        """The version whose registration, or a later one, shows what was read from the state before this."""
        return (self._term << 32) + self._versions_before + self._state().begun

    def begin(self, term: int) -> None:
        """Begin a role: clients reconnect, with new leases and groups."""
        self._term = max(term, self._state().term)
        self._versions_before += 1
        self._set()

    def count_replaced(self, before: State) -> None:
        """Count the changes of a state in whose place there is another one."""
        self._versions_before += before.made + 1

    def retain_topics(self) -> None:
        """Forget the leases of topics that are no more."""
        self.leases.retain_topics({topic.topic_id for topic in self._state().topics.copy().values()})

    def _set(self) -> None:
        state = self._state()
        until = self._loop.time() + self._recovery_s
        self.groups = GroupTable(first_epoch(self._term), Remembered(until, state.agreements.copy()))
        recovery = Recovery(until, frozenset(state.started.copy()))
        self.poppers = Poppers()
        self.leases = LeaseTable(self._term, recovery)


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
        if agreement == known or self._handle.is_slave:
            return
        fact = self._on_its_way[group] = GroupAgreed(group, agreement)
        self._streams.receive(self._record(fact), "agreement")

    async def _record(self, fact: GroupAgreed) -> None:
        try:
            await self._writes.commit(fact)
        except MiniMQError as error:
            log.warning("group: what it agrees on is not kept group=%s reason=%s", fact.group, error)
        finally:
            if self._on_its_way.get(fact.group) is fact:
                del self._on_its_way[fact.group]
