"""The owners of queues for consumer groups: at most one member at a time.

A member asks for a queue and gets a lease with an epoch as soon as nobody else holds it. It gives the queue back when
the group's allocation gives it to another, after it has committed. Pulls and commits carry the epoch, so that a former
owner that does not know yet is refused. Epochs only grow: the upper half is the term of the broker.

A queue without an owner may have to wait, for two reasons:

* Hold: its last owner has state to save, so nobody else gets it until that one has said so or the time is over.
* Recovery: the broker has just started and knows no lease of the run before. A member that holds the queue still, by
  the lease of that run, gets it back at once; nobody else can hold it. All others wait until the recovery is over,
  since a member that comes later may have had it after them: then the one with the highest former epoch is first, and
  the others follow in the order of asking. Holds of the run before are not known any more.

Times are seconds on any clock that does not go back.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Collection
from typing import NamedTuple

from minimq_broker.core.state import QueueKey
from minimq_common.errors import Fenced
from minimq_common.model import first_epoch


class LeaseKey(NamedTuple):
    """A queue as seen by one group."""

    group: str
    queue: QueueKey


class Granted(NamedTuple):
    """Tell this member that the queue is its own now."""

    client_id: str
    key: LeaseKey
    epoch: int


class Wanted(NamedTuple):
    """Tell this member, which owns the queue, that another one waits for it."""

    client_id: str
    key: LeaseKey


class Fencing(NamedTuple):
    """An epoch is over that its owner has not given back: what is under way under it is to be refused."""

    client_id: str
    key: LeaseKey


LeaseEvent = Granted | Wanted | Fencing


class LeaseStatus(NamedTuple):
    """One queue of a group."""

    owner: str = ""
    #: That of the owner, 0 without one.
    epoch: int = 0
    #: The former owner for which it is held, "" when it is not.
    holder: str = ""
    #: For how long it is held at most.
    held_s: float = 0.0
    #: The members that wait for it, in the order of their requests.
    waiting: tuple[str, ...] = ()

    @property
    def is_taken(self) -> bool:
        """True if somebody owns it or it is held for somebody."""
        return bool(self.owner or self.holder)


#: Queues whose time has come that one call of `expire` looks at, and those of one member that one of `drop` gives back.
AT_ONCE = 500


class _Lease:
    __slots__ = ("epoch", "owned", "owner", "saved", "until", "waiting")

    def __init__(self) -> None:
        #: Who owns the queue, or owned it last; "" before there was anybody.
        self.owner = ""
        self.owned = False
        self.epoch = 0
        #: Without an owner: until when nobody gets the queue.
        self.until = -math.inf
        #: The owner has saved its state ahead, and leaves nothing to wait for.
        self.saved = False
        #: In the order in which they asked, with the former epoch of each.
        self.waiting: dict[str, int] = {}


class LeaseTable:
    """All leases of one broker. Used by one thread; what must be told to whom is returned."""

    def __init__(
        self, term: int, recovers_until: float = -math.inf, started: Collection[tuple[str, int]] = frozenset()
    ) -> None:
        self._first_epoch = self._last_epoch = first_epoch(term)
        #: Until when former owners come back, and (group, topic id) of all groups that may have some.
        self._recovers_until, self._started = recovers_until, started
        self._leases: dict[LeaseKey, _Lease] = {}
        #: The queues that each member holds or waits for, by group and client, so that nobody has to look at all:
        #: in the order in which it asked, so that a run can be repeated.
        self._of_member: dict[tuple[str, str], dict[LeaseKey, None]] = {}
        #: The queues that wait for a time, and a heap of these times; in it are some that do not count any more.
        self._until: dict[LeaseKey, float] = {}
        self._due: list[tuple[float, LeaseKey]] = []
        #: The queues that were granted in this run while it recovers: later ones do not concern former owners.
        self._recovered: set[LeaseKey] = set()

    # ---- looking --------------------------------------------------------------------------------

    def __len__(self) -> int:
        return len(self._leases)

    def of_member(self, group: str, client_id: str) -> Collection[LeaseKey]:
        """Return the queues that a member holds or waits for."""
        return self._of_member.get((group, client_id), ())

    def of_group(self, group: str) -> list[LeaseKey]:
        """Return the queues that members of a group hold or wait for, or that are held for one that has left."""
        return [key for key in self._leases if key.group == group]

    def owner(self, key: LeaseKey) -> tuple[str, int] | None:
        """Return who owns a queue, and the epoch."""
        lease = self._leases.get(key)
        return (lease.owner, lease.epoch) if lease and lease.owned else None

    def status(self, key: LeaseKey, now: float) -> LeaseStatus:
        """Return all there is to say about a queue."""
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
        if lease is None or not lease.owned or lease.owner != client_id or lease.epoch != epoch:
            owned = lease is not None and lease.owned
            held = f"{lease.owner} holds it under epoch {lease.epoch}" if lease and owned else "nobody holds it"
            raise Fenced(
                f"{client_id} no longer owns queue {key.queue.queue_id} for group {key.group} (epoch {epoch}): {held}"
            )

    # ---- asking and giving back -----------------------------------------------------------------

    def acquire(
        self, key: LeaseKey, client_id: str, now: float, epoch: int = 0, *, held: bool = False
    ) -> list[LeaseEvent]:
        """Grant the queue, or let the member wait for it. An owner that asks again is granted the same epoch.

        The member says under which epoch it held the queue last, and whether it holds it still.
        """
        self._end_recovery(now)
        lease = self._leases.get(key)
        if lease is None:
            lease = self._leases[key] = _Lease()
            if self._is_recovering(key, now):
                self._wait_until(key, lease, self._recovers_until)
        if lease.owned and lease.owner == client_id:
            lease.saved = False  # it goes on
            return [Granted(client_id, key, lease.epoch)]
        self._of_member.setdefault((key.group, client_id), {})[key] = None
        is_former = 0 < epoch < self._first_epoch and self._is_recovering(key, now)
        lease.waiting[client_id] = max(epoch if is_former else 0, lease.waiting.get(client_id, 0))
        if lease.owned:
            return [Wanted(lease.owner, key)]
        if (lease.owner == client_id and now < lease.until) or (is_former and held):
            return self._grant(key, lease, client_id)
        return self._settle(key, lease, now)

    def release(self, key: LeaseKey, client_id: str, now: float, hold_s: float = 0.0) -> list[LeaseEvent]:
        """Take the queue back from its owner, or the wish from one that waits; grant it to the next."""
        lease = self._leases.get(key)
        if lease is None:
            return []
        self._leaves(key, client_id)
        if not lease.owned or lease.owner != client_id:
            lease.waiting.pop(client_id, None)
            return self._settle(key, lease, now)
        lease.owned = False
        self._wait_until(key, lease, now if lease.saved else now + hold_s)
        return self._settle(key, lease, now)

    def saved(self, key: LeaseKey, client_id: str, epoch: int, now: float) -> list[LeaseEvent]:
        """End the hold of a former owner, or see to it that none begins; the epoch is the one it is about, or 0."""
        lease = self._leases.get(key)
        if lease is None or lease.owner != client_id or epoch not in (0, lease.epoch):
            return []
        if lease.owned:
            lease.saved = True
            return []
        self._wait_until(key, lease, now)
        return self._settle(key, lease, now)

    def drop(self, group: str, client_id: str, now: float, hold_s: float = 0.0) -> list[LeaseEvent]:
        """Release what a member of a group holds or waits for; see `release`. Of much only a part: repeat it then."""
        events: list[LeaseEvent] = []
        for key in list(itertools.islice(self.of_member(group, client_id), AT_ONCE)):
            if self._leases[key].owned and self._leases[key].owner == client_id:
                events.append(Fencing(client_id, key))
            events += self.release(key, client_id, now, hold_s)
        return events

    def renew(self, key: LeaseKey) -> list[LeaseEvent]:
        """Give the owner a new epoch: what it does under the one it knows is refused until it has heard of it."""
        lease = self._leases.get(key)
        if lease is None or not lease.owned:
            return []
        return [Fencing(lease.owner, key), *self._grant(key, lease, lease.owner)]

    # ---- time and topics ------------------------------------------------------------------------

    @property
    def next_expiry(self) -> float | None:
        """When `expire` has something to do next; None when nothing waits for a time."""
        while self._due and self._until.get(self._due[0][1]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def expire(self, now: float) -> list[LeaseEvent]:
        """Grant what has waited long enough. Of much only a part: `next_expiry` is over then."""
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
        """Forget all leases and wishes in topics that are gone."""
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
        if len(self._due) > 2 * len(self._until) + AT_ONCE:  # most of them do not count any more
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
                self._forget(key)  # the next one to ask begins to wait anew
            return []
        if not lease.waiting:
            self._forget(key)
            return []
        return self._grant(key, lease, max(lease.waiting, key=lease.waiting.__getitem__))  # the first of the highest

    def _grant(self, key: LeaseKey, lease: _Lease, client_id: str) -> list[LeaseEvent]:
        self._until.pop(key, None)
        self._last_epoch += 1
        lease.waiting.pop(client_id, None)
        lease.owner, lease.owned, lease.epoch, lease.saved = client_id, True, self._last_epoch, False
        lease.waiting = dict.fromkeys(lease.waiting, 0)  # from now on it goes by the order of asking
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
