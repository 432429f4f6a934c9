"""The bytes that users may send to a server, or get from it, in a second."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from minimq_common.security.access_document import UserLimits

if TYPE_CHECKING:
    from minimq_common.security.caller import KnownCaller

#: What a user has not taken for that long is added to what comes next, in seconds.
_SAVED_S = 1.0
#: Users that are remembered; of issuers of tokens there may be any number. Those with limits are always known: the
#: document that names them is bounded.
_MOST_USERS = 10_000


class ByteRate:
    """A bound for the bytes of all streams of one user together, in one direction. Lives on one event loop.

    Whoever moves bytes waits until earlier ones are paid for, and then owes these: so a message larger than the rate
    passes too, and the next one waits longer.
    """

    def __init__(self, bytes_per_s: int = 0, clock: Callable[[], float] = time.monotonic) -> None:
        self.bytes_per_s = bytes_per_s
        self.waited_s = 0.0
        self._clock = clock
        self._paid_at = clock() - _SAVED_S  # when all that was moved is paid for

    def change(self, bytes_per_s: int) -> None:
        """Go by another rate from now on; what is owed is forgotten."""
        if bytes_per_s != self.bytes_per_s:
            self.bytes_per_s = bytes_per_s
            self._paid_at = self._clock() - _SAVED_S

    def owes_s(self) -> float:
        """Return for how long nothing may be moved, in seconds."""
        return max(0.0, self._paid_at - self._clock())

    def moved(self, size: int) -> None:
        """Count bytes that were moved."""
        if self.bytes_per_s:
            self._paid_at = max(self._paid_at, self._clock() - _SAVED_S) + size / self.bytes_per_s

    async def turn(self) -> None:
        """Wait until something may be moved."""
        while owed_s := min(self.owes_s(), _SAVED_S):  # the rate may change meanwhile
            self.waited_s += owed_s
            await asyncio.sleep(owed_s)


class UserRates:
    """One rate for each direction and user, however many keys and streams the user has. Lives on one event loop."""

    def __init__(self) -> None:
        self._rates: dict[str, tuple[ByteRate, ByteRate]] = {}

    def apply(self, caller: KnownCaller, limits: UserLimits) -> None:
        """Have a caller keep to the limits of its user from now on."""
        if caller.user not in self._rates:
            self._make_room()
            self._rates[caller.user] = ByteRate(), ByteRate()
        caller.received, caller.sent = self._rates[caller.user]
        _change(self._rates[caller.user], limits)

    def follow(self, limits_of: Callable[[str], UserLimits]) -> None:
        """Have all users keep to their limits of now, also those that do not call at present."""
        for user, rates in self._rates.items():
            _change(rates, limits_of(user))

    def waited(self) -> list[tuple[str, str, float]]:
        """Return users with limits, the direction, and for how long their streams have waited, in seconds.

        Any thread may call it.
        """
        return [
            (user, way, rate.waited_s)
            for user, rates in [*self._rates.items()]
            for way, rate in zip(("in", "out"), rates, strict=True)
            if _matters(rate)
        ]

    def _make_room(self) -> None:
        for is_kept in (_matters, _is_limited):
            if len(self._rates) >= _MOST_USERS:
                self._rates = {user: rates for user, rates in self._rates.items() if any(map(is_kept, rates))}


def _change(rates: tuple[ByteRate, ByteRate], limits: UserLimits) -> None:
    for rate, bytes_per_s in zip(rates, (limits.in_bytes_per_s, limits.out_bytes_per_s), strict=True):
        rate.change(bytes_per_s)


def _is_limited(rate: ByteRate) -> bool:
    return bool(rate.bytes_per_s)


def _matters(rate: ByteRate) -> bool:
    return _is_limited(rate) or bool(rate.waited_s)
