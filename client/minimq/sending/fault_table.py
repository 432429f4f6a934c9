"""Brokers that are left out for a while because they were slow, refused for reasons of their own, or were not reached.

A broker may be excluded for two kinds of reasons at once. It is *slow* when its answers took long or said that it has
too much to do: only time ends that. It is *unreachable* when no answer came: that ends with time too, or as soon as a
probe gets an answer.

An exclusion only ever gets longer: a quick answer says nothing about a broker that was slow a moment ago, because it
may be quick only because it is left out. The one exception is a probe that reaches an unreachable broker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from minimq.sending.latency_table import LatencyTable


@dataclass(frozen=True, slots=True)
class Exclusion:
    """Why and until when a broker is left out. Times are seconds on the clock of the caller.

    Attributes:
        broker_name: which broker.
        since: when it began; what followed before it was over is part of it.
        until: first moment at which the broker is available again.
        reason: what made it last until then.
        unreachable: whether a probe is still to reach the broker.
    """

    broker_name: str
    since: float
    until: float
    reason: str
    unreachable: bool


class FaultTable:
    """Excluded brokers by name. Not thread-safe; the queries change nothing.

    Every `now` is in seconds on one clock that does not go back. A broker that is not excluded costs no memory, one
    whose exclusion is over is forgotten when the next one begins.

    A caller that keeps what it computed from this table needs to compute it again when `version` differs, or at the
    time that `next_end` told it.

    Args:
        table: how long a latency or an error keeps a broker out.
    """

    def __init__(self, table: LatencyTable) -> None:
        self._table = table
        self._slow: dict[str, Exclusion] = {}
        self._unreachable: dict[str, Exclusion] = {}
        self._version = 0

    @property
    def version(self) -> int:
        """Another number after every change of an exclusion; quick answers do not change it, nor does time."""
        return self._version

    # ---- what happened --------------------------------------------------------------------------

    def measured(self, broker_name: str, latency_s: float, now: float) -> None:
        """A request was answered with success after `latency_s` seconds."""
        out_s = self._table.out_s(latency_s)
        if out_s:
            self._extend(self._slow, broker_name, f"an answer took {latency_s:.2f} s", now, now + out_s)

    def failed(self, broker_name: str, reason: str, now: float, *, unreachable: bool, at_least_s: float = 0.0) -> None:
        """A request failed with an error that speaks against the broker.

        Args:
            broker_name: which broker.
            reason: text for people.
            now: seconds.
            unreachable: whether no answer came, so that it is worth probing.
            at_least_s: seconds that the server asked to wait.
        """
        parts = self._unreachable if unreachable else self._slow
        self._extend(parts, broker_name, reason, now, now + max(self._table.isolation_s, at_least_s))

    def reached(self, broker_name: str, now: float) -> None:
        """A probe was answered: the broker is no longer unreachable. What it is slow for stays."""
        part = self._unreachable.pop(broker_name, None)
        if part is not None and now < part.until:
            self._version += 1

    def unreached(self, broker_name: str, now: float) -> None:
        """A probe was not answered: the broker stays out as long as after an error, from now on.

        A probe that took longer than the news that the broker is back says nothing any more.
        """
        known = self._unreachable.get(broker_name)
        if known is not None:
            self._extend(self._unreachable, broker_name, known.reason, now, now + self._table.isolation_s)

    # ---- what follows ---------------------------------------------------------------------------

    def available(self, broker_name: str, now: float) -> bool:
        """Return True if a broker is not excluded."""
        part = self._slow.get(broker_name)
        return (part is None or part.until <= now) and self.reachable(broker_name, now)

    def reachable(self, broker_name: str, now: float) -> bool:
        """Return True if a broker is not excluded for being unreachable; it may be slow."""
        part = self._unreachable.get(broker_name)
        return part is None or part.until <= now

    def until(self, broker_name: str, now: float) -> float:
        """Return when a broker is available: `now` when it is not excluded."""
        parts = (self._slow.get(broker_name), self._unreachable.get(broker_name))
        return max(now, *(part.until if part else now for part in parts))

    def excluded(self, now: float) -> list[Exclusion]:
        """Return the exclusions that last, sorted by broker name."""
        names = sorted(self._slow.keys() | self._unreachable.keys())
        return [found for name in names if (found := self._exclusion(name, now)) is not None]

    def to_probe(self, now: float) -> list[str]:
        """Return the names of the brokers that are excluded for being unreachable, sorted."""
        return sorted(name for name, part in self._unreachable.items() if now < part.until)

    def next_end(self, now: float) -> float:
        """Return when time alone next changes something: the broker of an exclusion is slow only, or available.

        Infinity when nothing is excluded.
        """
        ends = [part.until for parts in (self._slow, self._unreachable) for part in parts.values()]
        return min((end for end in ends if now < end), default=math.inf)

    def _exclusion(self, broker_name: str, now: float) -> Exclusion | None:
        """Return both parts of an exclusion as one."""
        parts = [
            part
            for part in (self._unreachable.get(broker_name), self._slow.get(broker_name))
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
        parts[broker_name] = Exclusion(broker_name, since, until, reason, parts is self._unreachable)
        self._version += 1

    def _forget(self, now: float) -> None:
        for parts in (self._slow, self._unreachable):
            for name in [name for name, part in parts.items() if part.until <= now]:
                del parts[name]


def choose_brokers(names: Sequence[str], faults: FaultTable, avoid: str | None, now: float) -> tuple[str, ...]:
    """Return which brokers a batch may go to now: the first of these choices that is not empty.

    1. those that are available, but for the one to avoid;
    2. those that are reachable though slow, but for the one to avoid: it has just refused this very batch, while what
       is known of the others is older and of other batches;
    3. the one to avoid, if it is available;
    4. the one whose exclusion ends first, be it the one to avoid; of several the first that is not to be avoided.

    So a broker that is alone is always used.

    Args:
        names: the brokers that carry the topic, each once.
        faults: what is known about brokers.
        avoid: the broker of the last try of this batch, None for its first try.
        now: seconds.

    Returns:
        Names in the order of `names`; none only when there are none to choose from.
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
