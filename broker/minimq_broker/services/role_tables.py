"""The tables that are recreated with each role of a broker: groups, leases, registration versions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from minimq_broker.core.groups import GroupTable, Remembered
from minimq_broker.core.leases import LeaseTable, Recovery
from minimq_broker.core.poppers import Poppers
from minimq_broker.core.state import State
from minimq_common.epochs import first_epoch


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
