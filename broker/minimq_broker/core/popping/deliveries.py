"""Deliveries that did not end, of queues that members of groups have to themselves: a try of a message that kills.

A member records a delivery before it makes it if it delivers nothing else meanwhile, which it does after a death. The
broker records those of members that died and had not: one of the messages from the committed offset on may be why.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minimq_broker.core.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.core.state import QueueKey, State


class OwnedQueue(NamedTuple):
    """A queue, and the epoch of the lease under which a member has it, or had it."""

    queue: QueueKey
    epoch: int


def after_death(group: str, owned: Sequence[OwnedQueue], state: State) -> OffsetsCommitted | None:
    """Return the fact that members died with these queues: of each the next message may be the reason."""
    found = []
    for queue, epoch in owned:
        offset = state.offset(group, queue) or 0
        if (group, *queue) not in state.deliveries and state.end(queue).offset > offset:
            found.append(CommittedOffset(*queue, offset, 1, epoch))
    return OffsetsCommitted(group, tuple(found)) if found else None


def withdrawn(group: str, owned: Sequence[OwnedQueue], state: State) -> OffsetsCommitted | None:
    """Return the fact that deliveries under these leases were no tries: their members live."""
    found = []
    for queue, epoch in owned:
        deliveries = state.deliveries.get((group, *queue))
        if deliveries is not None and epoch and deliveries.epoch == epoch:
            offset = state.offset(group, queue) or 0
            found.append(CommittedOffset(*queue, offset, deliveries.tries - 1, in_hand_end=deliveries.in_hand_end))
    return OffsetsCommitted(group, tuple(found)) if found else None
