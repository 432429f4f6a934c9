"""The rates of all users that a server has met."""

from __future__ import annotations

from minimq_common.security.access_document import UserLimits
from minimq_common.security.byte_rate import ByteRate
from minimq_common.security.caller import KnownCaller

#: Users that are remembered although they have no limits; of issuers of tokens there may be any number.
_MOST_USERS = 10_000


class UserRates:
    """One rate for each direction and user, however many keys and streams the user has. Lives on one event loop."""

    def __init__(self) -> None:
        self._rates: dict[str, tuple[ByteRate, ByteRate]] = {}

    def apply(self, caller: KnownCaller, limits: UserLimits) -> None:
        """Have a caller keep to the limits of its user from now on."""
        if caller.user not in self._rates:
            if len(self._rates) >= _MOST_USERS:
                self._rates = {user: rates for user, rates in self._rates.items() if any(map(_matters, rates))}
            self._rates[caller.user] = ByteRate(), ByteRate()
        caller.received, caller.sent = self._rates[caller.user]
        caller.received.change(limits.in_bytes_per_s)
        caller.sent.change(limits.out_bytes_per_s)

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


def _matters(rate: ByteRate) -> bool:
    return bool(rate.bytes_per_s or rate.waited_s)
