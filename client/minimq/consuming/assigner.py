"""The interface by which a consumer gets its queues: from its group, or from a feature such as broadcasting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from minimq_common.errors import MinimqError
from minimq_common.model import MessageQueue


class Assigner(Protocol):
    """Starts and stops the reading of queues. Lives on the event loop of the connection."""

    @property
    def was_taken(self) -> bool:
        """True once the consumer takes part. On any thread."""

    def start(self) -> None: ...

    async def wait_begun(self, timeout_s: float) -> None:
        """Wait until the first queues are assigned and their positions fixed, at most for the timeout."""

    def release(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Release queues after their last commit, each under the epoch at which it was read."""

    def lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        """Handle a broker's answer that it no longer knows a lease or, if there is none, the topic."""

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Report that the user's state of queues is saved. On any thread."""

    async def leave(self) -> None:
        """Release all queues; commit before. Idempotent."""

    def close(self) -> None:
        """Free what it holds, after `leave`. On any thread; does not block."""
