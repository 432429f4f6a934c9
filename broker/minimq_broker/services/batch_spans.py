"""The protocol by which the services have spans made; who makes them needs a library that may be missing."""

from __future__ import annotations

from typing import Any, Protocol

from minimq_broker.store.jobs import AppendJob


class BatchSpans(Protocol):
    """Makes spans of batches that clients have sent. Belongs to the event loop."""

    def parent(self, traceparent: str) -> Any | None:  # noqa: ANN401 - it is passed to `make` alone
        """Return the context of whoever has sent a batch; None if there are to be no spans of it."""

    def make(self, parent: Any, job: AppendJob, came_at: float, ended_at: float) -> None:  # noqa: ANN401
        """Make the spans of a batch that is answered."""
