"""Brokers that are avoided for a while because they were slow, refused requests, or could not be reached.

A broker may be excluded for two kinds of reasons at once. It is *slow* if its answers took long or reported overload:
only time ends that. It is *unreachable* if it did not answer: that ends with time too, or as soon as it answers a
probe.

An exclusion only ever gets longer: a quick answer proves nothing about a broker that was slow a moment ago, because it
may be quick only because it is avoided. The one exception is a probe that reaches an unreachable broker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

#: For how long a broker is excluded after a latency, both in seconds; as in RocketMQ since 5.1.4.
_EXCLUSIONS = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: The latency in seconds from which on it is excluded.
SLOW_S = _EXCLUSIONS[-1][0]
#: Seconds for which it is excluded after an error.
ISOLATION_S = 10.0


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The exclusion of a broker. Times are seconds on the clock of the caller.

    Attributes:
        broker_name: the broker.
        since: when it began; later extensions belong to it.
        until: first moment at which the broker is available again.
        reason: the reason for `until`.
        unreachable: whether no probe has reached the broker yet.
    """

    broker_name: str
    since: float
    until: float
    reason: str
    unreachable: bool


class FaultTable:
    """Excluded brokers by name. Not thread-safe; the queries change nothing.

    Every `now` is in seconds on one monotonic clock. A broker that is not excluded uses no memory; an expired exclusion
    is forgotten when the next one begins.

    A caller that caches results from this table has to recompute them when `version` changes, or at the time returned
    by `next_end`.
    """

    def __init__(self) -> None:
        self._slow: dict[str, Exclusion] = {}
        self.unreachable: dict[str, Exclusion] = {}
        #: Changes with every change of an exclusion, but not with quick answers or time.
        self.version = 0

    # ---- what happened --------------------------------------------------------------------------

    def answered(self, broker_name: str, latency_s: float, now: float) -> None:
        """Record that a broker has answered a request after `latency_s` seconds."""
        if self.unreachable:
            self.reached(broker_name, now)
        if latency_s >= SLOW_S:
            self.measured(broker_name, latency_s, now)

    def measured(self, broker_name: str, latency_s: float, now: float) -> None:
        """Record a successful answer after `latency_s` seconds."""
        out_s = next((out_s for least_s, out_s in _EXCLUSIONS if latency_s >= least_s), 0.0)
        if out_s:
            self._extend(self._slow, broker_name, f"an answer took {latency_s:.2f} s", now, now + out_s)

    def failed(self, broker_name: str, reason: str, now: float, *, unreachable: bool, at_least_s: float = 0.0) -> None:
        """Record a request that failed with an error of the broker."""
        parts = self.unreachable if unreachable else self._slow
        self._extend(parts, broker_name, reason, now, now + max(ISOLATION_S, at_least_s))

    def reached(self, broker_name: str, now: float) -> None:
        """Record an answered probe: the broker is no longer unreachable, but may stay slow."""
        part = self.unreachable.pop(broker_name, None)
        if part is not None and now < part.until:
            self.version += 1

    def unreached(self, broker_name: str, now: float) -> None:
        """Record an unanswered probe: from now on, the broker is excluded as long as after an error.

        A probe that is older than the broker's return is ignored.
        """
        known = self.unreachable.get(broker_name)
        if known is not None:
            self._extend(self.unreachable, broker_name, known.reason, now, now + ISOLATION_S)

    # ---- what follows ---------------------------------------------------------------------------

    def available(self, broker_name: str, now: float) -> bool:
        """Return True if a broker is not excluded."""
        part = self._slow.get(broker_name)
        return (part is None or part.until <= now) and self.reachable(broker_name, now)

    def reachable(self, broker_name: str, now: float) -> bool:
        """Return True if a broker is not excluded for being unreachable; it may be slow."""
        part = self.unreachable.get(broker_name)
        return part is None or part.until <= now

    def until(self, broker_name: str, now: float) -> float:
        """Return when a broker is available: `now` if it is not excluded."""
        parts = (self._slow.get(broker_name), self.unreachable.get(broker_name))
        return max(now, *(part.until if part else now for part in parts))

    def excluded(self, now: float) -> list[Exclusion]:
        """Return the current exclusions, sorted by broker name."""
        names = sorted(self._slow.keys() | self.unreachable.keys())
        return [found for name in names if (found := self._exclusion(name, now)) is not None]

    def to_probe(self, now: float) -> list[str]:
        """Return the names of the brokers that are excluded for being unreachable, sorted."""
        return sorted(name for name, part in self.unreachable.items() if now < part.until)

    def next_end(self, now: float) -> float:
        """Return the next time at which an exclusion changes by time alone. Infinity if nothing is excluded."""
        ends = [part.until for parts in (self._slow, self.unreachable) for part in parts.values()]
        return min((end for end in ends if now < end), default=math.inf)

    def _exclusion(self, broker_name: str, now: float) -> Exclusion | None:
        parts = [
            part
            for part in (self.unreachable.get(broker_name), self._slow.get(broker_name))
            if part is not None and now < part.until
        ]
        if not parts:
            return None
        last = max(parts, key=lambda part: part.until)
        since = min(part.since for part in parts)
        return Exclusion(broker_name, since, last.until, last.reason, any(part.unreachable for part in parts))

    def _extend(self, parts: dict[str, Exclusion], broker_name: str, reason: str, now: float, until: float) -> None:
        known = parts.get(broker_name)
        if known is not None and now < known.until:
            if until <= known.until:
                return
            since = known.since
        else:
            since = now
            self._forget(now)
        parts[broker_name] = Exclusion(broker_name, since, until, reason, parts is self.unreachable)
        self.version += 1

    def _forget(self, now: float) -> None:
        for parts in (self._slow, self.unreachable):
            for name in [name for name, part in parts.items() if part.until <= now]:
                del parts[name]


def choose_brokers(names: Sequence[str], faults: FaultTable, avoid: str | None, now: float) -> tuple[str, ...]:
    """Return the brokers that a batch may go to now: the first of these choices that is not empty.

    1. available brokers, except the one to avoid;
    2. reachable but slow brokers, except the one to avoid: it has just refused this very batch, while the knowledge
       about the others is older and about other batches;
    3. the one to avoid, if it is available;
    4. the one whose exclusion ends first, even the one to avoid; of several the first that is not to be avoided.

    So a single broker is always used.
    """
    others = [name for name in names if name != avoid]
    for usable in (faults.available, faults.reachable):
        chosen = tuple(name for name in others if usable(name, now))
        if chosen:
            return chosen
    if avoid is not None and avoid in names and faults.available(avoid, now):
        return (avoid,)
    if not names:
        return ()
    return (min(names, key=lambda name: (faults.until(name, now), name == avoid)),)
