"""The visitors who have signed in: bounded in number and time, and in memory alone. Pure: the time is an argument."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from minimq_common.errors import SystemBusy

View = TypeVar("View")

#: Sign-ins of all users, and of one: with a further one of a user, the oldest of that user ends.
MOST_SIGN_INS, MOST_OF_A_USER = 48, 4
#: Seconds after which a sign-in ends of which no page is open, and after which each ends.
IDLE_S, LONGEST_S = 1_800.0, 43_200.0


@dataclass(eq=False, slots=True)
class SignIn(Generic[View]):
    """One visitor who has signed in."""

    token: str = field(repr=False)
    user: str
    view: View
    began_s: float
    #: When the last request of it ended, or began.
    seen_s: float
    requests: int = 0

    def is_over(self, now_s: float) -> bool:
        """Return whether it has ended by itself."""
        is_idle = not self.requests and now_s - self.seen_s >= IDLE_S
        return is_idle or now_s - self.began_s >= LONGEST_S


class SignIns(Generic[View]):
    """All sign-ins. Not thread-safe.

    Whoever adds, finds or ends one closes the views of those that `take_ended` returns.
    """

    def __init__(self) -> None:
        self._sign_ins: dict[str, SignIn[View]] = {}
        self._ended: list[SignIn[View]] = []

    def __len__(self) -> int:
        return len(self._sign_ins)

    def add(self, token: str, user: str, view: View, now_s: float) -> SignIn[View]:
        """Begin a sign-in. Raises `SystemBusy` when there are too many, of other users."""
        self.sweep(now_s)
        of_user = [each for each in self._sign_ins.values() if each.user == user]
        if len(of_user) >= MOST_OF_A_USER:
            self.end(min(of_user, key=lambda each: each.began_s).token)
        elif len(self._sign_ins) >= MOST_SIGN_INS:
            raise SystemBusy(f"{MOST_SIGN_INS} visitors are signed in, which is as many as may be: try again later")
        sign_in = self._sign_ins[token] = SignIn(token, user, view, now_s, now_s)
        return sign_in

    def find(self, token: str, now_s: float) -> SignIn[View] | None:
        """Return the sign-in of a token; None if there is none, or it has ended."""
        self.sweep(now_s)
        return self._sign_ins.get(token)

    def begin_request(self, sign_in: SignIn[View]) -> None:
        """Count a request that begins, which keeps a sign-in from being idle."""
        sign_in.requests += 1

    def end_request(self, sign_in: SignIn[View], now_s: float) -> None:
        """Count a request that has ended."""
        sign_in.requests -= 1
        sign_in.seen_s = now_s

    def end(self, token: str) -> None:
        """End a sign-in, if it is there."""
        sign_in = self._sign_ins.pop(token, None)
        if sign_in is not None:
            self._ended.append(sign_in)

    def end_all(self) -> None:
        """End all of them."""
        for token in [*self._sign_ins]:
            self.end(token)

    def sweep(self, now_s: float) -> None:
        """End those whose time is over."""
        for token in [token for token, sign_in in self._sign_ins.items() if sign_in.is_over(now_s)]:
            self.end(token)

    def take_ended(self) -> list[SignIn[View]]:
        """Return the sign-ins that have ended since the last time."""
        ended, self._ended = self._ended, []
        return ended
