"""Segments of a broker that were found damaged: what is done about it, and that it is said once."""

from __future__ import annotations

import logging
from collections.abc import Callable

log = logging.getLogger(__name__)


class Damage:
    """The known damage. Any thread may call any method."""

    def __init__(self) -> None:
        self.known: dict[int, str] = {}
        self.repair: Callable[[int, str], None] | None = None

    def found(self, start: int, reason: str) -> None:
        """Take note that something in a segment cannot be read."""
        repair = self.repair
        if repair is None:
            self.tell(start, reason)
        else:
            repair(start, reason)

    def tell(self, start: int, reason: str) -> None:
        """Log that a segment stays damaged, unless that was logged before."""
        if start in self.known:
            return
        self.known[start] = reason
        log.error(
            "store: a segment is damaged segment=%d reason=%s: if there are other replicas, let one of them lead "
            "(minimq cluster promote), and this one repairs itself; minimq-broker check lists all that is damaged",
            start,
            reason,
        )
