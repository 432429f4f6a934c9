"""Brokers that are avoided for a while because they were slow or refused requests, and the choice among the others.

An exclusion only ever gets longer: a quick answer proves nothing about a broker that was slow a moment ago, because it
may be quick only because it is avoided. Brokers that do not answer at all are known to `BrokerHealth`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

#: For how long a broker is excluded after a latency, both in seconds; as in RocketMQ since 5.1.4.
_EXCLUSIONS = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: The latency in seconds from which on it is excluded.
SLOW_S = _EXCLUSIONS[-1][0]
#: Seconds for which it is excluded after an error.
ISOLATION_S = 10.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The exclusion of a broker. Times are seconds on the monotonic clock.

    Attributes:
        broker_name: the broker.
        since: when it began; later extensions belong to it.
        until: first moment at which the broker is available again; infinite for one that has to answer first.
        reason: the reason for `until`.
        unreachable: whether the broker does not answer.
    """

    broker_name: str
    since: float
    until: float
    reason: str
    unreachable: bool = False


class FaultTable:
    """Excluded brokers by name. Not thread-safe; the queries change nothing.

    A caller that caches results from this table has to recompute them when `version` changes, or at `next_end`.
    """

    def __init__(self) -> None:
        self._exclusions: dict[str, Exclusion] = {}
        #: Changes with every change of an exclusion, but not with quick answers or time.
        self.version = 0

    def measured(self, broker_name: str, latency_s: float, now: float) -> None:
        """Record that an answer took `latency_s` seconds, or had not come by then."""
        out_s = next((out_s for least_s, out_s in _EXCLUSIONS if latency_s >= least_s), 0.0)
        if out_s:
            self._exclude(broker_name, f"an answer took {latency_s:.2f} s", now, now + out_s)

    def failed(self, broker_name: str, reason: str, now: float, at_least_s: float = 0.0) -> None:
        """Record a request that failed with an error of the broker."""
        self._exclude(broker_name, reason, now, now + max(ISOLATION_S, at_least_s))

    def is_excluded(self, broker_name: str, now: float) -> bool:
        """Tell whether a broker is excluded."""
        known = self._exclusions.get(broker_name)
        return known is not None and now < known.until

    def excluded(self, now: float) -> list[Exclusion]:
        """Return the current exclusions, sorted by broker name."""
        return [each for name, each in sorted(self._exclusions.items()) if now < each.until]

    def next_end(self, now: float) -> float:
        """Return the next time at which an exclusion ends. Infinity if nothing is excluded."""
        return min((each.until for each in self._exclusions.values() if now < each.until), default=math.inf)

    def _exclude(self, broker_name: str, reason: str, now: float, until: float) -> None:
        known = self._exclusions.get(broker_name)
        since = now
        if known is not None and now < known.until:
            if until <= known.until:
                return
            since = known.since
        else:
            self._exclusions = {each.broker_name: each for each in self.excluded(now)}
        self._exclusions[broker_name] = Exclusion(broker_name, since, until, reason)
        self.version += 1


def choose_brokers(
    names: Sequence[str], is_excluded: Callable[[str], bool], is_silent: Callable[[str], bool], avoid: str | None
) -> tuple[str, ...]:
    """Return the brokers that a batch may go to now: the first of these choices that is not empty.

    1. those that are well, except the one to avoid;
    2. those that answer but are excluded, except the one to avoid: it has just refused this very batch, while the
       knowledge about the others is older and about other batches;
    3. the one to avoid, if it answers;
    4. all but the one to avoid, or that.

    So a single broker is always used.
    """
    others = tuple(name for name in names if name != avoid)
    reachable = tuple(name for name in others if not is_silent(name))
    well = tuple(name for name in reachable if not is_excluded(name))
    if reachable:
        return well or reachable
    if avoid is not None and avoid in names and not is_silent(avoid):
        return (avoid,)
    return others or tuple(names)
