"""Who owns a queue for a consumer group: at most one member at a time.

A member asks for a queue and gets a lease with an epoch as soon as nobody else holds it. It gives the queue back when
the group's allocation gives it to another, after it has committed. Pulls and commits carry the epoch, so that a former
owner that does not know yet is refused. Epochs only grow: the upper half is the term of the broker.
"""

from __future__ import annotations

from typing import NamedTuple

from minimq_broker.core.state import QueueKey
from minimq_common.errors import Fenced

_TERM_SHIFT = 32


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


LeaseEvent = Granted | Wanted


class _Lease:
    __slots__ = ("epoch", "owner", "waiting")

    def __init__(self, owner: str, epoch: int) -> None:
        self.owner = owner
        self.epoch = epoch
        #: In the order in which they asked.
        self.waiting: list[str] = []


class LeaseTable:
    """All leases of one broker. Used by one thread; what must be told to whom is returned.

    Args:
        term: number of this run of the broker; larger than that of any run before.
    """

    def __init__(self, term: int) -> None:
        self._last_epoch = term << _TERM_SHIFT
        self._leases: dict[LeaseKey, _Lease] = {}

    def owner(self, key: LeaseKey) -> tuple[str, int] | None:
        """Return who owns a queue, and the epoch."""
        lease = self._leases.get(key)
        return (lease.owner, lease.epoch) if lease else None

    def acquire(self, key: LeaseKey, client_id: str) -> list[LeaseEvent]:
        """Grant the queue, or let the member wait for it. An owner that asks again is granted the same epoch."""
        lease = self._leases.get(key)
        if lease is None:
            return [self._grant(key, client_id, [])]
        if lease.owner == client_id:
            return [Granted(client_id, key, lease.epoch)]
        if client_id not in lease.waiting:
            lease.waiting.append(client_id)
        return [Wanted(lease.owner, key)]

    def release(self, key: LeaseKey, client_id: str) -> list[LeaseEvent]:
        """Take the queue back from its owner, or the wish from one that waits; grant it to the next."""
        lease = self._leases.get(key)
        if lease is None:
            return []
        if lease.owner != client_id:
            if client_id in lease.waiting:
                lease.waiting.remove(client_id)
            return []
        del self._leases[key]
        if not lease.waiting:
            return []
        successor, *waiting = lease.waiting
        granted = self._grant(key, successor, waiting)
        return [granted, Wanted(successor, key)] if waiting else [granted]

    def drop(self, group: str, client_id: str) -> list[LeaseEvent]:
        """Release all that a member of a group holds or waits for."""
        keys = [key for key in self._leases if key.group == group]
        return [event for key in keys for event in self.release(key, client_id)]

    def check(self, key: LeaseKey, client_id: str, epoch: int) -> None:
        """Raise `Fenced` unless the member owns the queue under this epoch."""
        lease = self._leases.get(key)
        if lease is None or lease.owner != client_id or lease.epoch != epoch:
            held = f"{lease.owner} holds it under epoch {lease.epoch}" if lease else "nobody holds it"
            raise Fenced(
                f"{client_id} no longer owns queue {key.queue.queue_id} for group {key.group} (epoch {epoch}): {held}"
            )

    def _grant(self, key: LeaseKey, client_id: str, waiting: list[str]) -> Granted:
        self._last_epoch += 1
        lease = self._leases[key] = _Lease(client_id, self._last_epoch)
        lease.waiting = waiting
        return Granted(client_id, key, lease.epoch)
