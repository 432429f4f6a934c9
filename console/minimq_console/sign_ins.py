"""Sign-ins and failed attempts, bounded in number and time, in memory only. Pure: the time is an argument."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from minimq_common.errors import SystemBusy

#: Maximum number of sign-ins, and of one user: with a further one, the oldest of that user ends.
MAX_SIGN_INS, MAX_PER_USER = 1_000, 100
#: Maximum number of views; a user has as many as it has keys, two.
MAX_VIEWS = 48
#: Seconds after which an idle sign-in without an open page ends, and after which any ends.
IDLE_S, MAX_S = 1_800.0, 43_200.0
#: Maximum number of failed attempts of one address, and of all, within a window in seconds; further ones do not reach
#: the cluster.
MAX_PER_ADDRESS, MAX_IN_ALL, WINDOW_S = 10, 100, 60.0


@dataclass(eq=False, slots=True)
class SignIn:
    id: str = field(repr=False)
    user: str
    #: Identifies a connection to the cluster with one key.
    view: str
    began_s: float
    #: When its last request began or ended.
    seen_s: float
    requests: int = 0

    def is_over(self, now_s: float) -> bool:
        is_idle = not self.requests and now_s - self.seen_s >= IDLE_S
        return is_idle or now_s - self.began_s >= MAX_S


class SignIns:
    """All sign-ins, the oldest first. Not thread-safe. The caller closes views that are no longer `views`."""

    def __init__(self) -> None:
        self._sign_ins: dict[str, SignIn] = {}

    @property
    def views(self) -> set[str]:
        return {each.view for each in self._sign_ins.values()}

    def add(self, sign_in_id: str, user: str, view: str, now_s: float) -> None:
        """Add a sign-in. Raises `SystemBusy` if other users have too many."""
        self.sweep(now_s)
        own = [each for each in self._sign_ins.values() if each.user == user]
        if len(own) >= MAX_PER_USER:
            self.end(own[0].id)
        if len(self._sign_ins) >= MAX_SIGN_INS or len(self.views | {view}) > MAX_VIEWS:
            raise SystemBusy("too many visitors are signed in: try again later")
        self._sign_ins[sign_in_id] = SignIn(sign_in_id, user, view, now_s, now_s)

    def find(self, sign_in_id: str, now_s: float) -> SignIn | None:
        """Return a sign-in; None if there is none, or it has expired."""
        found = self._sign_ins.get(sign_in_id)
        return None if found is None or found.is_over(now_s) else found

    def end(self, sign_in_id: str) -> SignIn | None:
        """End a sign-in; return it if it was there."""
        return self._sign_ins.pop(sign_in_id, None)

    def end_all(self) -> None:
        self._sign_ins.clear()

    def sweep(self, now_s: float) -> None:
        self._sign_ins = {name: each for name, each in self._sign_ins.items() if not each.is_over(now_s)}


class Attempts:
    """Counts recent failed attempts. Not thread-safe."""

    def __init__(self) -> None:
        self._failed: deque[tuple[float, str]] = deque()

    def check(self, address: str, now_s: float) -> None:
        """Count an attempt. Raises `SystemBusy` if there were too many."""
        while self._failed and now_s - self._failed[0][0] >= WINDOW_S:
            self._failed.popleft()
        times = [at for at, _ in self._failed]
        for found, most in (([at for at, own in self._failed if own == address], MAX_PER_ADDRESS), (times, MAX_IN_ALL)):
            if len(found) >= most:
                wait_s = WINDOW_S - (now_s - found[0])
                raise SystemBusy(f"too many attempts to sign in: try again in {wait_s:.0f} s", retry_after_s=wait_s)
        self._failed.append((now_s, address))

    def succeeded(self, address: str, now_s: float) -> None:
        """Remove the attempt that `check` counted at this time."""
        if (now_s, address) in self._failed:
            self._failed.remove((now_s, address))
