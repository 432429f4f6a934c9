"""Damage in the log of this replica, which decides whether it may be elected and what repairs it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

from minimq_broker.replication.follower import Follower
from minimq_broker.services.store_handle import StoreHandle
from minimq_common.errors import CorruptEntry
from minimq_common.replicas.replica_set import ReplicaSet

log = logging.getLogger(__name__)


class OwnDamage:
    """The damaged segments of one replica. Lives on the loop of the engine, but for what says otherwise."""

    def __init__(self, handle: StoreHandle, follower: Callable[[], Follower | None]) -> None:
        self.told = False
        self._handle = handle
        self._follower = follower
        self._loop = asyncio.get_running_loop()
        handle.damage.repair = self._found

    def stop(self) -> None:
        """Repair nothing any more."""
        self._handle.damage.repair = None

    def begin_to_follow(self) -> None:
        """Forget what could not be repaired: the next detection starts the repair."""
        self._handle.damage.known.clear()

    @property
    def reasons(self) -> Mapping[int, str]:
        """The damage that is to be repaired, by the starts of segments."""
        return {} if self._handle.is_closed else self._handle.store.log.damage.reasons

    def bars(self, record: ReplicaSet | None, own_id: int) -> bool:
        """Return whether this replica may not be elected: it lacks something that another one in sync may have."""
        return bool(self.reasons) and (record is None or record.in_sync != {own_id})

    def check(self) -> None:
        """Raise `CorruptEntry` if this replica was elected before it could report damage of its log."""
        if self.reasons and not self.told:
            raise CorruptEntry(
                f"a segment is damaged, so this replica does not lead: {next(iter(self.reasons.values()))}"
            )

    def _found(self, start: int, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._repair, start, reason)

    def _repair(self, start: int, reason: str) -> None:
        follower, damage = self._follower(), self._handle.damage
        if follower is None or not follower.connected:
            damage.tell(start, reason)
        elif start not in damage.known and self._handle.store.log.mark_damaged(start, reason):
            self.told = False
            log.error("roles: a segment is damaged, and will be repaired segment=%d reason=%s", start, reason)
            follower.repair()
