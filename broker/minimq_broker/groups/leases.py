"""Leases of queues: within a consumer group, a queue has at most one owner at a time.

A member requests a queue, and gets a lease with an epoch once the queue is free. When the allocation of the group moves
the queue to another member, the owner commits and then releases it. Pulls and commits carry the epoch, so the broker
rejects a former owner that has not noticed yet. Epochs only grow: their upper half is the term of the broker.

A free queue is not granted at once in two cases:

* Hold: its last owner still has state to save. Other members wait until it reports that, or until the hold times out.
* Recovery: the broker has just started and has no leases from its previous run. A member that still holds the queue
  under such a lease gets it back at once, as no other member can hold it. All others wait until the recovery ends,
  because a member that had the queue after them may still return. Then the one with the highest former epoch comes
  first, the others in the order of their requests. Holds of the previous run are lost.

Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection
from typing import NamedTuple

from minimq_broker.state.state import QueueKey
from minimq_common.errors import Fenced
from minimq_common.model import first_epoch


class LeaseKey(NamedTuple):
    group: str
    queue: QueueKey


class Granted(NamedTuple):
    """Notify this member that it owns the queue now."""

    client_id: str
    key: LeaseKey
    epoch: int


class Wanted(NamedTuple):
    """Notify the owner of the queue that another member waits for it."""

    client_id: str
    key: LeaseKey


class Fencing(NamedTuple):
    """Reject the requests in flight of this member: its epoch ended without a release."""

    client_id: str
    key: LeaseKey


LeaseEvent = Granted | Wanted | Fencing


class LeaseStatus(NamedTuple):
    owner: str = ""
    #: 0 without an owner.
    epoch: int = 0
    #: The former owner for which the queue is held; "" if it is not held.
    holder: str = ""
    #: Seconds until the hold times out.
    held_s: float = 0.0
    #: The waiting members, in the order of their requests.
    waiting: tuple[str, ...] = ()

    @property
    def is_taken(self) -> bool:
        """True if the queue has an owner or is held for one."""
        return bool(self.owner or self.holder)


#: Queues that one call of `expire` or `drop` handles at most, so that it never blocks the event loop for long.
AT_ONCE = 500


class _Lease:
    __slots__ = ("epoch", "owned", "owner", "saved", "until", "waiting")

    def __init__(self) -> None:
        #: The owner or the last owner; "" if there never was one.
        self.owner = ""
        self.owned = False
        self.epoch = 0
        #: While it is free: the queue is granted from this time on.
        self.until = -math.inf
        #: The owner has saved its state in advance: its release needs no hold.
        self.saved = False
        #: Former epoch of each waiting member, in the order of their requests.
        self.waiting: dict[str, int] = {}


class LeaseTable:
    """All leases of one broker. Used by one thread. Methods return the events that the caller has to deliver."""

    def __init__(
        self, term: int, recovers_until: float = -math.inf, started: Collection[tuple[str, int]] = frozenset()
    ) -> None:
        self._first_epoch = self._last_epoch = first_epoch(term)
        #: End of the recovery, and (group, topic id) of all groups that may have former owners.
        self._recovers_until, self._started = recovers_until, started
        self._leases: dict[LeaseKey, _Lease] = {}
        #: The queues that a member holds or waits for, by (group, client id). Values are dicts, not sets, to keep the
        #: order of requests: simulated runs must be reproducible.
        self._of_member: dict[tuple[str, str], dict[LeaseKey, None]] = {}
        #: The queues that wait for a time, and a heap of these times that may contain outdated ones.
        self._until: dict[LeaseKey, float] = {}
        self._due: list[tuple[float, LeaseKey]] = []
        #: The queues already granted during the recovery: their former owners no longer get them back.
        self._recovered: set[LeaseKey] = set()

    # ---- lookups --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._leases)

    def of_member(self, group: str, client_id: str) -> Collection[LeaseKey]:
        """Return the queues that a member holds or waits for."""
        return self._of_member.get((group, client_id), ())

    def of_group(self, group: str) -> list[LeaseKey]:
        """Return the queues that members of a group own or wait for, or that are held for a former member."""
        return [key for key in self._leases if key.group == group]

    def owner(self, key: LeaseKey) -> tuple[str, int] | None:
        lease = self._leases.get(key)
        return (lease.owner, lease.epoch) if lease and lease.owned else None

    def status(self, key: LeaseKey, now: float) -> LeaseStatus:
        lease = self._leases.get(key)
        if lease is None:
            return LeaseStatus()
        waiting = tuple(lease.waiting)
        if lease.owned:
            return LeaseStatus(lease.owner, lease.epoch, waiting=waiting)
        held_s = max(lease.until - now, 0.0) if lease.owner else 0.0
        return LeaseStatus(holder=lease.owner if held_s else "", held_s=held_s, waiting=waiting)

    def check(self, key: LeaseKey, client_id: str, epoch: int) -> None:
        """Raise `Fenced` unless the member owns the queue under this epoch."""
        lease = self._leases.get(key)
        owner = (lease.owner, lease.epoch) if lease is not None and lease.owned else None
        if owner != (client_id, epoch):
            held = "nobody holds it" if owner is None else f"{owner[0]} holds it under epoch {owner[1]}"
            raise Fenced(
                f"{client_id} no longer owns queue {key.queue.queue_id} for group {key.group} (epoch {epoch}): {held}"
            )

    # ---- acquire and release --------------------------------------------------------------------

    def acquire(
        self, key: LeaseKey, client_id: str, now: float, epoch: int = 0, *, held: bool = False
    ) -> list[LeaseEvent]:
        """Grant the queue, or add the member to those that wait. An owner that asks again gets the same epoch.

        `epoch` is the one under which the member held the queue last; `held`: the member still holds it.
        """
        self._end_recovery(now)
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease()
            if self._is_recovering(key, now):
                self._wait_until(key, lease, self._recovers_until)
        if lease.owned and lease.owner == client_id:
            lease.saved = False  # it continues to consume
            return [Granted(client_id, key, lease.epoch)]
        self._of_member.setdefault((key.group, client_id), {})[key] = None
        is_former = 0 < epoch < self._first_epoch and self._is_recovering(key, now)
        lease.waiting[client_id] = max(epoch if is_former else 0, lease.waiting.get(client_id, 0))
        if lease.owned:
            return [Wanted(lease.owner, key)]
        if (lease.owner == client_id and now < lease.until) or (is_former and held):
            return self._grant(key, lease, client_id)
        return self._settle(key, lease, now)

    def release(self, key: LeaseKey, client_id: str, now: float, handover_timeout_s: float = 0.0) -> list[LeaseEvent]:
        """Release the queue of an owner, or cancel the request of a waiting member; grant it to the next."""
        lease = self._leases.get(key)
        if lease is None:
            return []
        self._leaves(key, client_id)
        if not lease.owned or lease.owner != client_id:
            lease.waiting.pop(client_id, None)
            return self._settle(key, lease, now)
        lease.owned = False
        self._wait_until(key, lease, now if lease.saved else now + handover_timeout_s)
        return self._settle(key, lease, now)

    def saved(self, key: LeaseKey, client_id: str, epoch: int, now: float) -> list[LeaseEvent]:
        """End the hold of a former owner, or let its next release be without one. `epoch` 0 means any epoch."""
        lease = self._leases.get(key)
        if lease is None or lease.owner != client_id or epoch not in (0, lease.epoch):
            return []
        if lease.owned:
            lease.saved = True
            return []
        self._wait_until(key, lease, now)
        return self._settle(key, lease, now)

    def drop(self, group: str, client_id: str, now: float, handover_timeout_s: float = 0.0) -> list[LeaseEvent]:
        """Release what a member owns or waits for, up to `AT_ONCE` queues: repeat until `of_member` is empty."""
        events: list[LeaseEvent] = []
        for key in list(itertools.islice(self.of_member(group, client_id), AT_ONCE)):
            if self._leases[key].owned and self._leases[key].owner == client_id:
                events.append(Fencing(client_id, key))
            events += self.release(key, client_id, now, handover_timeout_s)
        return events

    def renew(self, key: LeaseKey) -> list[LeaseEvent]:
        """Give the owner a new epoch. Its requests under the old one are rejected until it learns the new one."""
        lease = self._leases.get(key)
        if lease is None or not lease.owned:
            return []
        return [Fencing(lease.owner, key), *self._grant(key, lease, lease.owner)]

    # ---- time and topics ------------------------------------------------------------------------

    @property
    def next_expiry(self) -> float | None:
        """When `expire` has something to do next; None if no queue waits for a time."""
        while self._due and self._until.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def expire(self, now: float) -> list[LeaseEvent]:
        """Grant the queues that have waited long enough, up to `AT_ONCE`; `next_expiry` is past if more are due."""
        self._end_recovery(now)
        events: list[LeaseEvent] = []
        for _ in range(AT_ONCE):
            due = self.next_expiry
            if due is None or due > now:
                break
            _, key = heapq.heappop(self._due)
            events += self._settle(key, self._leases[key], now)
        return events

    def retain_topics(self, topic_ids: Collection[int]) -> None:
        for key in [key for key in self._leases if key.queue.topic_id not in topic_ids]:
            self._forget(key)

    # ---- transitions ----------------------------------------------------------------------------

    def _end_recovery(self, now: float) -> None:
        if now >= self._recovers_until:
            self._started = frozenset()
            self._recovered.clear()

    def _is_recovering(self, key: LeaseKey, now: float) -> bool:
        started = (key.group, key.queue.topic_id) in self._started
        return started and now < self._recovers_until and key not in self._recovered

    def _wait_until(self, key: LeaseKey, lease: _Lease, until: float) -> None:
        lease.until = self._until[key] = until
        heapq.heappush(self._due, (until, key))
        if len(self._due) > 2 * len(self._until) + AT_ONCE:  # most of them are outdated
            self._due = [(until, key) for key, until in self._until.items()]
            heapq.heapify(self._due)

    def _leaves(self, key: LeaseKey, client_id: str) -> None:
        keys = self._of_member.get((key.group, client_id))
        if keys is not None:
            keys.pop(key, None)
            if not keys:
                del self._of_member[key.group, client_id]

    def _settle(self, key: LeaseKey, lease: _Lease, now: float) -> list[LeaseEvent]:
        if lease.owned:
            return []
        if now < lease.until:
            if not lease.waiting and not lease.owner:
                self._forget(key)  # the next request restarts the wait
            return []
        if not lease.waiting:
            self._forget(key)
            return []
        return self._grant(key, lease, max(lease.waiting, key=lease.waiting.__getitem__))  # the oldest of the highest

    def _grant(self, key: LeaseKey, lease: _Lease, client_id: str) -> list[LeaseEvent]:
        self._until.pop(key, None)
        self._last_epoch += 1
        lease.waiting.pop(client_id, None)
        lease.owner, lease.owned, lease.epoch, lease.saved = client_id, True, self._last_epoch, False
        lease.waiting = dict.fromkeys(lease.waiting, 0)  # from now on only the order of requests counts
        if self._started:
            self._recovered.add(key)
        granted = Granted(client_id, key, lease.epoch)
        return [granted, Wanted(client_id, key)] if lease.waiting else [granted]

    def _forget(self, key: LeaseKey) -> None:
        lease = self._leases.pop(key, None)
        if lease is not None:
            for client_id in (lease.owner, *lease.waiting):
                self._leaves(key, client_id)
        self._until.pop(key, None)
