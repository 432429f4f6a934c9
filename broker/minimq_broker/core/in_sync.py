"""The replicas of a broker that are in sync, and the confirmed position of the log, as their master sees it.

The in-sync set is recorded by the controller, and any of its members may become the next master. So a set of a
synchronous master keeps one rule: whoever is in the record, or may be by now, has everything that was ever confirmed.
Therefore a replica counts from the moment in which it wants to join until the controller has recorded that it left, and
it is asked for only once it has all that is confirmed.

Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass
from typing import NamedTuple

#: Part of the longest lag by which a replica may be behind when it joins; one that is always late would leave again.
_JOINS_WITHIN = 0.2
#: Ends that a replica was told of and has not reached yet are remembered so many times in the longest lag.
_MARKS = 25


@dataclass(frozen=True, slots=True)
class Patience:
    """When a replica is not in sync any more."""

    #: Seconds after its stream broke.
    broken_s: float = 1.0
    #: Seconds in which it did not have all that there was at their beginning.
    lag_s: float = 5.0


class ReplicaProgress(NamedTuple):
    """The progress of a replica."""

    position: int
    connected: bool
    #: Seconds since it had all that there was.
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
        #: The latest time of which it has all that there was then.
        self.caught_up_at = now
        #: What it was told of and has not reached, in the order of time and position.
        self.marks: deque[_Mark] = deque()
        #: Counts because it wants to join, until then at most.
        self.joins_until = -math.inf


class InSync:
    """The in-sync set during one leadership. Used by one thread."""

    def __init__(
        self, own_id: int, members: Collection[int], patience: Patience, now: float, *, sync: bool, confirmed: int = 0
    ) -> None:
        self.members = frozenset(members)
        self.confirmed = confirmed
        self._own_id = own_id
        self._sync = sync
        self._patience = patience
        self._replicas = {replica_id: _Replica(now) for replica_id in self.members if replica_id != own_id}
        #: Who may be in the record because it was asked for, and no answer was heard since.
        self._asked: frozenset[int] = frozenset()

    # ---- what replicas do -----------------------------------------------------------------------

    def attach(self, replica_id: int, position: int, now: float) -> None:
        """Take note that a replica follows, from a position on which it has synced."""
        replica = self._replicas.setdefault(replica_id, _Replica(now))
        replica.connected = True
        replica.position = position
        replica.marks.clear()
        if position < self.confirmed:
            replica.caught_up_at = -math.inf  # if it ever had what is confirmed, it does not have it any more

    def detach(self, replica_id: int, now: float) -> None:
        """Take note that a replica does not follow any more."""
        replica = self._replicas[replica_id]
        replica.connected = False
        replica.lost_at = now
        replica.joins_until = -math.inf

    def told(self, replica_id: int, end: int, now: float) -> None:
        """Take note that a replica is told where the log ends."""
        replica = self._replicas[replica_id]
        if replica.position >= end:
            self._caught_up(replica_id, replica, now, now)
        elif not replica.marks or (
            end > replica.marks[-1].end and now - replica.marks[-1].at >= self._patience.lag_s / _MARKS
        ):
            replica.marks.append(_Mark(now, end))

    def acknowledged(self, replica_id: int, position: int, now: float) -> None:
        """Take note that a replica has synced the log up to a position."""
        replica = self._replicas[replica_id]
        replica.position = max(position, replica.position)
        reached: _Mark | None = None
        while replica.marks and replica.marks[0].end <= replica.position:
            reached = replica.marks.popleft()
        if reached is not None:
            self._caught_up(replica_id, replica, reached.at, now)

    def _caught_up(self, replica_id: int, replica: _Replica, at: float, now: float) -> None:
        replica.caught_up_at = max(replica.caught_up_at, at)
        if replica_id not in self.members and now - at <= self._patience.lag_s * _JOINS_WITHIN:
            replica.joins_until = now + self._patience.broken_s

    # ---- what follows from it -------------------------------------------------------------------

    def wanted(self, now: float) -> frozenset[int]:
        """Return who should be in the record now; that is `members` when nothing is to be changed."""
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
        """Take note that the controller is asked to record these: from now on they may be in the record."""
        self._asked |= frozenset(members)

    @property
    def electable(self) -> frozenset[int]:
        """All who are in the record, or may be by now."""
        return self.members | self._asked

    @property
    def is_in_doubt(self) -> bool:
        """True if a replica counts only because an unanswered question named it: only another question settles that."""
        return not self._asked <= self.members

    def recorded(self, members: Collection[int], now: float) -> None:
        """Take over what the controller has recorded; no earlier question is open any more."""
        self.members = frozenset(members)
        self._asked = frozenset()
        for member in self.members - {self._own_id}:
            replica = self._replicas.setdefault(member, _Replica(now))
            replica.joins_until = -math.inf

    def confirm(self, own_end: int, now: float) -> int:
        """Return the confirmed position when the master itself has synced up to `own_end`."""
        position = self._lowest(own_end, now) if self._sync else own_end
        self.confirmed = max(self.confirmed, position)
        return self.confirmed

    def common_end(self, own_end: int, now: float) -> int:
        """Return up to where every member has the log when the master itself has synced up to `own_end`.

        That is what is confirmed, unless the master decides that alone: then it is less, and may go back when a replica
        joins that is behind.
        """
        return self.confirmed if self._sync else self._lowest(own_end, now)

    def _lowest(self, own_end: int, now: float) -> int:
        counting = (
            replica.position
            for replica_id, replica in self._replicas.items()
            if replica_id in self.members or replica_id in self._asked or now < replica.joins_until
        )
        return min((own_end, *counting))

    def progress(self, now: float) -> dict[int, ReplicaProgress]:
        """Return how far each replica is that was ever heard of, the master itself left out."""
        return {
            replica_id: ReplicaProgress(replica.position, replica.connected, max(now - replica.caught_up_at, 0.0))
            for replica_id, replica in sorted(self._replicas.items())
        }

    def _is_overdue(self, replica: _Replica, now: float) -> bool:
        if not replica.connected and now - replica.lost_at > self._patience.broken_s:
            return True
        return now - replica.caught_up_at > self._patience.lag_s
