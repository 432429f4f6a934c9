"""The time for which a master may serve in its term, and when its successor may begin. Pure: times are arguments.

A master serves while one of two things holds:

* its controller has renewed its lease: `lease_s` from the moment before the report was sent;
* *every* other replica that the controller might elect has confirmed the term: `lease_s` from the moment at which the
  confirmed frame was sent. These replicas are the in-sync set, and all that were asked for and may be in it by now.

**Never do two masters serve at one time.** A successor is one of these replicas. The controller elects it when the
lease of the former master is over. From the moment at which it learns of its own term it confirms no older one, and it
begins to serve only `wait_s`, a lease and a tenth, after it has received the last frame that it confirmed. A frame is
received after it was sent, so by then its confirmation is over at the former master, and one missing confirmation is
enough to stop that one. A replica that has just started does not know what it confirmed before: it counts from its
start.

Clocks are never compared with each other. Their speeds may differ by a tenth, and each has to go on while its machine
sleeps. A master that is alone in its set needs nobody: nobody else can be elected. An unclean promotion is outside of
this: it names a replica that is not in the set.
"""

from __future__ import annotations

import math
from collections.abc import Iterable


class TermLease:
    """The right of one master to serve in one term."""

    def __init__(self, lease_s: float, until: float) -> None:
        self._lease_s = lease_s
        self._controller_until = until
        self._is_ending = False
        #: When the latest confirmed frame was sent, by replica id.
        self._confirmed: dict[int, float] = {}
        self._sent_at = -math.inf

    def renew(self, until: float) -> None:
        """Take note that the controller has renewed the lease."""
        self._controller_until = max(self._controller_until, until)

    def ending(self) -> None:
        """Take note that the controller has chosen a successor: confirmations count no more."""
        self._is_ending = True

    def ask(self, now: float) -> float | None:
        """Return the number of a frame that slaves are asked to confirm, which is `now`; None if they are not."""
        if self._is_ending:
            return None
        self._sent_at = max(self._sent_at, now)
        return now

    def confirmed(self, replica_id: int, sent_at: float) -> None:
        """Take note that a replica has confirmed the frame that was sent at a time."""
        if sent_at <= self._sent_at:
            self._confirmed[replica_id] = max(sent_at, self._confirmed.get(replica_id, sent_at))

    @property
    def controller_until(self) -> float:
        """When the lease of the controller ends, or ended."""
        return self._controller_until

    def until(self, electable: Iterable[int]) -> float:
        """Return when the right to serve ends; infinity if nobody else can be elected."""
        if self._is_ending:
            return self._controller_until
        oldest = min((self._confirmed.get(replica_id, -math.inf) for replica_id in electable), default=math.inf)
        return max(self._controller_until, oldest + self._lease_s)


class Confirmations:
    """The terms that one process of a replica confirms to masters."""

    def __init__(self, now: float) -> None:
        self._term = 0
        self._latest_at = now

    def accept(self, term: int) -> None:
        """Confirm no older term from now on."""
        self._term = max(self._term, term)

    def confirm(self, term: int, received_at: float) -> bool:
        """Return whether a frame of a master, received at a time, may be confirmed; if so, it counts as confirmed."""
        if term < self._term:
            return False
        self._term = term
        self._latest_at = max(self._latest_at, received_at)
        return True

    def leads_from(self, wait_s: float) -> float:
        """Return when this replica may begin to serve as a master."""
        return self._latest_at + wait_s if wait_s else -math.inf
