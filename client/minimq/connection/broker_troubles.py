"""Brokers in trouble, by address: those that do not answer, and those that are avoided for a while. Pure.

A quick answer never shortens the avoidance of a slow broker: it may be quick only because it is avoided.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from minimq_common.errors import MinimqError

#: Pairs of a latency and how long a broker is avoided after it, in seconds; as in RocketMQ since 5.1.4.
_AVOIDED_AFTER = ((15.0, 30.0), (5.0, 10.0), (3.0, 6.0), (1.8, 5.0), (0.55, 2.0))
#: Least latency after which a broker is avoided.
SLOW_S = _AVOIDED_AFTER[-1][0]
#: How long a broker is avoided after an error.
ISOLATION_S = 10.0


@dataclass(frozen=True, slots=True)
class Trouble:
    """The trouble of a broker. Times are seconds on the monotonic clock."""

    since: float
    #: End of the avoidance, if the broker answers.
    until: float
    reason: str
    is_silent: bool = False


class BrokerTroubles:
    """The brokers in trouble. Queries are thread-safe and change nothing."""

    def __init__(self) -> None:
        #: By address; includes troubles that are over.
        self.known: dict[str, Trouble] = {}

    def is_silent(self, address: str) -> bool:
        """Return whether a broker left a request unanswered, and has not answered since."""
        known = self.known.get(address)
        return known is not None and known.is_silent

    def trouble(self, address: str, now: float) -> Trouble | None:
        """Return the current trouble of a broker, if any."""
        known = self.known.get(address)
        return known if known is not None and (known.is_silent or now < known.until) else None

    def measured(self, address: str, latency_s: float, now: float) -> None:
        """Record that an answer took `latency_s` seconds, or did not arrive in that time."""
        avoided_s = next((avoided_s for least_s, avoided_s in _AVOIDED_AFTER if latency_s >= least_s), 0.0)
        if avoided_s:
            self._avoid(address, f"an answer took {latency_s:.2f} s", now, now + avoided_s)

    def failed(self, address: str, error: MinimqError | None, took_s: float, now: float) -> None:
        """Record that a request failed after `took_s` seconds, or, without an error, that a stream ended normally."""
        if error is None or error.answered:
            if error is not None and error.avoid_broker:
                self._avoid(address, error.message, now, now + max(ISOLATION_S, error.retry_after_s))
            return
        self.measured(address, took_s, now)
        known = self.trouble(address, now) or Trouble(now, now, "")
        if not known.is_silent:
            self.forget_old(now)
            self.known[address] = replace(known, reason=error.message, is_silent=True)
            self.fell_silent(address)

    def fell_silent(self, address: str) -> None:
        """Called when a broker becomes unresponsive; a subclass probes it, and then calls `answers`."""

    def answers(self, address: str) -> None:
        if (known := self.known.get(address)) is not None:
            self.known[address] = replace(known, is_silent=False)

    def forget_old(self, now: float) -> None:
        for address in [*self.known]:
            if self.trouble(address, now) is None:
                self.known.pop(address, None)  # another thread may have removed it

    def _avoid(self, address: str, reason: str, now: float, until: float) -> None:
        known = self.trouble(address, now)
        if known is None:
            self.forget_old(now)
            self.known[address] = Trouble(now, until, reason)
        elif until > known.until:
            self.known[address] = replace(known, until=until, reason=known.reason if known.is_silent else reason)


def choose_brokers(
    names: Sequence[str], is_avoided: Callable[[str], bool], is_silent: Callable[[str], bool], avoid: str | None
) -> tuple[str, ...]:
    """Return the brokers to which a batch may be sent now: the first of these that is not empty.

    1. healthy brokers, except `avoid`;
    2. avoided brokers that answer, except `avoid`: that one has just rejected this very batch, while the reports about
       the others are older and about other batches;
    3. `avoid`, if it answers;
    4. all brokers except `avoid`; if there are none, `avoid`.

    So a single broker is always used.
    """
    others = tuple(name for name in names if name != avoid)
    reachable = tuple(name for name in others if not is_silent(name))
    well = tuple(name for name in reachable if not is_avoided(name))
    if reachable:
        return well or reachable
    if avoid is not None and avoid in names and not is_silent(avoid):
        return (avoid,)
    return others or tuple(names)
