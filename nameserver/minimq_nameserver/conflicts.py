"""Brokers that have no place in the route table because another broker has it: what an operator should see.

Pure: times are arguments, in seconds of any clock that only goes forward.
"""

from __future__ import annotations

from dataclasses import dataclass

from minimq_nameserver.broker_state import BrokerState

#: How many conflicts are remembered; of more, the latest.
MOST_KEPT = 20
#: Seconds for which a conflict is shown that is not seen again. A refused broker tries every second, so one that is
#: silent for so long has been stopped, or set up anew.
KEPT_S = 300.0


@dataclass(frozen=True, slots=True)
class Conflict:
    """One broker that was refused, or replaced by another."""

    cluster: str
    broker_name: str
    broker_id: int
    address: str
    holder_address: str
    reason: str
    #: When it was seen first, in seconds of the caller's clock.
    first_at: float
    last_at: float
    times: int


class ConflictLog:
    """The conflicts of the last minutes, one for each broker name and address. Not thread-safe.

    A conflict is over when the broker has a place after all, or when it was not seen for `KEPT_S`.
    """

    def __init__(self) -> None:
        self._seen: dict[tuple[str, str], Conflict] = {}  # the one that was seen last is at the end

    def note(self, loser: BrokerState, holder: BrokerState, reason: str, now: float) -> None:
        """Remember that a broker was refused or replaced."""
        key = loser.broker_name, loser.address
        known = self._seen.pop(key, None)
        self._seen[key] = Conflict(
            cluster=loser.cluster,
            broker_name=loser.broker_name,
            broker_id=loser.broker_id,
            address=loser.address,
            holder_address=holder.address,
            reason=reason,
            first_at=known.first_at if known else now,
            last_at=now,
            times=known.times + 1 if known else 1,
        )
        while len(self._seen) > MOST_KEPT:
            del self._seen[next(iter(self._seen))]

    def settle(self, registered: BrokerState) -> None:
        """Forget the conflict of a broker that has a place now, also one that it had under another name."""
        self._seen = {
            (name, address): conflict
            for (name, address), conflict in self._seen.items()
            # Two names for one address: that the holder registers again does not settle it.
            if address != registered.address
            or (name != registered.broker_name and conflict.holder_address == registered.address)
        }

    def recent(self, now: float) -> list[Conflict]:
        """Return the open conflicts, the one that was seen last at the end; any thread may ask."""
        return [conflict for conflict in self._seen.copy().values() if now - conflict.last_at < KEPT_S]
