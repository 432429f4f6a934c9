"""The rates of all users that a server has met."""

from __future__ import annotations

from collections.abc import Callable

from minimq_common.security.access_document import UserLimits
from minimq_common.security.byte_rate import ByteRate
from minimq_common.security.caller import KnownCaller

#: Users that are remembered; of issuers of tokens there may be any number. Those with limits are always known: the
#: document that names them is bounded.
_MOST_USERS = 10_000


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
