"""The in-sync set and the confirmed position of the log, as the master sees them.

The controller records the in-sync set, and any of its members may become the next master. So a synchronous master
keeps one rule: every replica that is in the record, or may be by now, has everything that was ever confirmed.
Therefore a replica counts for the confirmed position from the moment it wants to join until the controller has recorded
that it left, and the master proposes it only once it has everything that is confirmed.

Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

#: Share of `InSyncLimits.lag_s` that a joining replica may lag. A replica that is always later would soon leave again.
_JOIN_LAG_FRACTION = 0.2
#: Resolution of the lag: at most this many `_Mark`s are taken within `InSyncLimits.lag_s`.
_MARKS_PER_LAG = 25


@dataclass(frozen=True, slots=True)
class InSyncLimits:
    """The time for which a replica stays in sync without keeping up."""

    #: Seconds after its stream broke.
    broken_s: float = 1.0
    #: Seconds: a replica is out of sync if it lacks something that the log had this long ago.
    lag_s: float = 5.0


class ReplicaProgress(NamedTuple):
    position: int
    connected: bool
    #: Seconds since it had the whole log.
    lag_s: float


class _Mark(NamedTuple):
    at: float
    end: int


class _Replica:
    __slots__ = ("caught_up_at", "connected", "joins_until", "lost_at", "marks", "position")

    def __init__(self, now: float) -> None:
        self.position = 0
        self.connected = False
        self.lost_at = now
        #: It has everything that the log had at this time.
        self.caught_up_at = now
        #: Ends of the log that it was told and has not reached: a replica that reaches one had the whole log then.
        self.marks: deque[_Mark] = deque()
        #: Until this time it counts because it wants to join.
        self.joins_until = -math.inf


class InSync:
    """The in-sync set during one leadership. Used by one thread."""

    def __init__(
        self,
        own_id: int,
        members: Collection[int],
        max_wait: InSyncLimits,
        now: float,
        *,
        sync: bool,
        confirmed: int = 0,
    ) -> None:
        self.members = frozenset(members)
        self.confirmed = confirmed
        self._own_id = own_id
        self._sync = sync
        self._max_wait = max_wait
        self._replicas = {replica_id: _Replica(now) for replica_id in self.members if replica_id != own_id}
        #: Proposed to the controller without an answer so far: they may be in the record.
        self._asked: frozenset[int] = frozenset()

    # ---- events of replicas ---------------------------------------------------------------------

    def attach(self, replica_id: int, position: int, now: float) -> None:
        replica = self._replicas.setdefault(replica_id, _Replica(now))
        # An asynchronous master may have confirmed entries that the replica never had. At the first connection of the
        # replica, its earlier position is unknown.
        if position < min(self.confirmed, replica.position or self.confirmed):
            replica.caught_up_at = -math.inf  # if it ever had everything confirmed, it has lost a part
        replica.connected = True
        replica.position = position
        replica.marks.clear()

    def detach(self, replica_id: int, now: float) -> None:
        replica = self._replicas[replica_id]
        replica.connected = False
        replica.lost_at = now
        replica.joins_until = -math.inf

    def told(self, replica_id: int, end: int, now: float) -> None:
        """Record that a replica learned where the log ends."""
        replica = self._replicas[replica_id]
        if replica.position >= end:
            self._caught_up(replica_id, replica, now, now)
        elif not replica.marks or (
            end > replica.marks[-1].end and now - replica.marks[-1].at >= self._max_wait.lag_s / _MARKS_PER_LAG
        ):
            replica.marks.append(_Mark(now, end))

    def acknowledged(self, replica_id: int, position: int, now: float) -> None:
        replica = self._replicas[replica_id]
        replica.position = max(position, replica.position)
        reached: _Mark | None = None
        while replica.marks and replica.marks[0].end <= replica.position:
            reached = replica.marks.popleft()
        if reached is not None:
            self._caught_up(replica_id, replica, reached.at, now)

    def _caught_up(self, replica_id: int, replica: _Replica, at: float, now: float) -> None:
        replica.caught_up_at = max(replica.caught_up_at, at)
        if replica_id not in self.members and now - at <= self._max_wait.lag_s * _JOIN_LAG_FRACTION:
            replica.joins_until = now + self._max_wait.broken_s

    # ---- decisions ------------------------------------------------------------------------------

    def wanted(self, now: float) -> frozenset[int]:
        """Return the replicas that should be in the record; equals `members` if no change is needed."""
        staying = {
            member
            for member in self.members
            if member == self._own_id or not self._is_overdue(self._replicas[member], now)
        }
        joining = {
            replica_id
            for replica_id, replica in self._replicas.items()
            if now < replica.joins_until and (replica.position >= self.confirmed or not self._sync)
        }
        return frozenset(staying | joining)

    def ask(self, members: Collection[int]) -> None:
        """Note that the controller is asked to record these members: from now on they may be in the record."""
        self._asked |= frozenset(members)

    @property
    def electable(self) -> frozenset[int]:
        """All replicas that are in the record, or may be by now."""
        return self.members | self._asked

    @property
    def is_in_doubt(self) -> bool:
        """True if a replica counts only because of an unanswered request: only another request resolves that."""
        return not self._asked <= self.members

    def recorded(self, members: Collection[int], now: float) -> None:
        """Adopt the members that the controller has recorded, which settles all earlier requests."""
        self.members = frozenset(members)
        self._asked = frozenset()
        for member in self.members - {self._own_id}:
            replica = self._replicas.setdefault(member, _Replica(now))
            replica.joins_until = -math.inf

    def confirm(self, own_end: int, now: float) -> int:
        """Update and return the confirmed position; the master itself has synced up to `own_end`."""
        position = self._lowest(own_end, now) if self._sync else own_end
        self.confirmed = max(self.confirmed, position)
        return self.confirmed

    def common_end(self, own_end: int, now: float) -> int:
        """Return the position up to which every member has the log; the master itself has synced up to `own_end`."""
        return self.confirmed if self._sync else self._lowest(own_end, now)

    def _lowest(self, own_end: int, now: float) -> int:
        counting = (
            replica.position
            for replica_id, replica in self._replicas.items()
            if replica_id in self.members or replica_id in self._asked or now < replica.joins_until
        )
        return min((own_end, *counting))

    def progress(self, now: float) -> dict[int, ReplicaProgress]:
        """Return the progress of every known replica except the master itself."""
        return {
            replica_id: ReplicaProgress(replica.position, replica.connected, max(now - replica.caught_up_at, 0.0))
            for replica_id, replica in sorted(self._replicas.items())
        }

    def _is_overdue(self, replica: _Replica, now: float) -> bool:
        if not replica.connected and now - replica.lost_at > self._max_wait.broken_s:
            return True
        return now - replica.caught_up_at > self._max_wait.lag_s
