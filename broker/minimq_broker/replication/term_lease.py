"""Limits how long a master serves in its term, and when its successor may begin. Pure: times are arguments.

A master serves while one of two conditions holds:

* The controller has renewed its lease. This counts for `lease_s` from the time before the report was sent.
* *Every* other replica that the controller might elect has confirmed the term. This counts for `lease_s` from the time
  at which the confirmed frame was sent. These replicas are the in-sync set, and those that may be in it by now.

**Two masters never serve at the same time.** The successor is one of these replicas. The controller elects it after the
lease of the former master has expired. Once it learns of its own term, it confirms no older one. It begins to serve
`wait_s` (the lease plus a tenth) after it received the last frame that it confirmed. As a frame is received after it
was sent, its confirmation has expired at the former master by then, and one missing confirmation stops that master. A
replica that has just started does not know what it confirmed before, so it waits from its start.

Clocks of different machines are never compared. Their speeds may differ by a tenth, and each must run on while its
machine sleeps. A master that is alone in its set may always serve, as no other replica can be elected. An unclean
promotion is not covered: it promotes a replica outside of the set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class TermLease:
    """The right of one master to serve in one term."""

    def __init__(self, lease_s: float, until: float) -> None:
        self._lease_s = lease_s
        #: When the lease from the controller ends or ended.
        self.controller_until = until
        self._is_ending = False
        #: When the latest confirmed frame was sent, by replica id.
        self._confirmed: dict[int, float] = {}
        self._sent_at = -math.inf

    def renew(self, until: float) -> None:
        """Note that the controller has renewed the lease."""
        self.controller_until = max(self.controller_until, until)

    def ending(self) -> None:
        """Note that the controller has chosen a successor: confirmations no longer count."""
        self._is_ending = True

    def ask(self, now: float) -> float | None:
        """Return the number of a frame that slaves shall confirm, which is `now`; None if they need not."""
        if self._is_ending:
            return None
        self._sent_at = max(self._sent_at, now)
        return now

    def confirmed(self, replica_id: int, sent_at: float) -> None:
        """Note that a replica has confirmed the frame that was sent at `sent_at`."""
        if sent_at <= self._sent_at:
            self._confirmed[replica_id] = max(sent_at, self._confirmed.get(replica_id, sent_at))

    def until(self, electable: Iterable[int]) -> float:
        """Return when the right to serve ends; infinity if no other replica can be elected."""
        if self._is_ending:
            return self.controller_until
        oldest = min((self._confirmed.get(replica_id, -math.inf) for replica_id in electable), default=math.inf)
        return max(self.controller_until, oldest + self._lease_s)


class Confirmations:
    """The terms that a replica confirms to masters, during one run of its process."""

    def __init__(self, now: float) -> None:
        self._term = 0
        self._latest_at = now

    def accept(self, term: int) -> None:
        """Confirm no older term from now on."""
        self._term = max(self._term, term)

    def confirm(self, term: int, received_at: float) -> bool:
        """Return whether to confirm a frame that was received at a time. If so, it counts as confirmed."""
        if term < self._term:
            return False
        self._term = term
        self._latest_at = max(self._latest_at, received_at)
        return True

    def leads_from(self, wait_s: float) -> float:
        """Return when this replica may begin to serve as a master."""
        return self._latest_at + wait_s if wait_s else -math.inf
