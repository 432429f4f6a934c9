"""The attempts to sign in that failed, which are limited. Pure: the time is an argument."""

from __future__ import annotations

from collections import OrderedDict, deque

from minimq_common.errors import SystemBusy

#: Attempts that fail, from one address and from all together, within so many seconds; further ones are not looked at.
MOST_OF_AN_ADDRESS, MOST_OF_ALL, WINDOW_S = 10, 100, 60.0
#: Addresses that are remembered: those that failed last.
_MOST_ADDRESSES = 1_000


class Attempts:
    """The attempts that failed lately. Not thread-safe.

    Keys have 256 random bits, so nobody guesses one: this keeps attempts from costing the cluster much.
    """

    def __init__(self) -> None:
        self._all: deque[float] = deque()
        self._by_address: OrderedDict[str, deque[float]] = OrderedDict()

    def check(self, address: str, now_s: float) -> None:
        """Raise `SystemBusy` unless somebody at an address may try now; the attempt counts at once."""
        own = self._by_address.setdefault(address, deque())
        self._by_address.move_to_end(address)
        if len(self._by_address) > _MOST_ADDRESSES:
            self._by_address.popitem(last=False)
        for times, most in ((own, MOST_OF_AN_ADDRESS), (self._all, MOST_OF_ALL)):
            while times and now_s - times[0] >= WINDOW_S:
                times.popleft()
            if len(times) >= most:
                wait_s = WINDOW_S - (now_s - times[0])
                raise SystemBusy(f"too many attempts to sign in: try again in {wait_s:.0f} s", retry_after_s=wait_s)
        own.append(now_s)
        self._all.append(now_s)

    def succeeded(self, address: str, now_s: float) -> None:
        """Take back the attempt of this time: it did not fail."""
        for times in (self._by_address.get(address, deque()), self._all):
            if now_s in times:
                times.remove(now_s)
