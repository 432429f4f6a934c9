"""Unfinished deliveries of leased queues: detects messages that kill their consumer.

After the death of a member, the next owner delivers the messages that may be the reason with nothing else in flight,
and records each such delivery before it makes it. If a member dies without such a record, the broker records a try: any
message from the committed offset on may be the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.state.state import QueueKey, State


class OwnedQueue(NamedTuple):
    """A queue, and the epoch under which a member owns or owned it."""

    queue: QueueKey
    epoch: int


def after_death(group: str, owned: Sequence[OwnedQueue], state: State) -> OffsetsCommitted | None:
    """Return the fact that members died while owning these queues; None if each has a record, or no messages left."""
    found = []
    for queue, epoch in owned:
        offset = state.offset(group, queue) or 0
        if (group, *queue) not in state.deliveries and state.end(queue).offset > offset:
            found.append(CommittedOffset(*queue, offset, 1, epoch))
    return OffsetsCommitted(group, tuple(found)) if found else None


def withdrawn(group: str, owned: Sequence[OwnedQueue], state: State) -> OffsetsCommitted | None:
    """Return the fact that deliveries under these leases do not count, as their members live."""
    found = []
    for queue, epoch in owned:
        deliveries = state.deliveries.get((group, *queue))
        if deliveries is not None and epoch and deliveries.epoch == epoch:
            offset = state.offset(group, queue) or 0
            found.append(
                CommittedOffset(*queue, offset, deliveries.delivery_count - 1, in_flight_end=deliveries.in_flight_end)
            )
    return OffsetsCommitted(group, tuple(found)) if found else None
