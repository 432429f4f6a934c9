"""The calls of a fetcher to its consumer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from minimq.receiving.member_state import Grant
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.queue_decisions import QueueEvent
from minimq_common.errors import MiniMQError
from minimq_common.model import MessageQueue


@dataclass(frozen=True, slots=True)
class FetcherCallbacks:
    """The calls of a fetcher to its consumer. None of the first three may block."""

    #: Gets a queue, its epoch and the reason when its broker does not know the lease.
    lease_over: Callable[[MessageQueue, int, MiniMQError], None]
    begins: Callable[[MessageQueue, Grant], None]
    lost: Callable[[Sequence[MessageQueue]], None]
    #: Gets queues that were gained or lost, in the thread that takes messages and before the first message of those
    #: gained.
    announce: Callable[[QueueEvent, list[MessageQueue]], None]
    #: Gets what was missed when a queue goes on elsewhere, in the thread that takes messages.
    offset_reset: Callable[[OffsetReset], None]
    #: Returns how long the messages of a queue wait after they were stored.
    delay_ms: Callable[[MessageQueue], int]
