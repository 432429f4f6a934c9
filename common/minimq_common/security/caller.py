"""Whoever makes the call that is served: what they may do, and how much of it."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from minimq_common.errors import AccessDenied, MiniMQError, NotAuthenticated, SystemBusy, Unavailable
from minimq_common.security.access_document import UserLimits
from minimq_common.security.access_policy import AccessDecision, refused
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.needs import CallAccess, CallerKind, needs_of
from minimq_common.wire.rpc import LiveStream

#: Decisions that are remembered of one caller.
MOST_DECISIONS = 4_096

#: Returns whether a user has a right, and why.
Decide = Callable[[Need], AccessDecision]
#: Takes the user, and the right that is lacking; None for what servers alone may do.
Denied = Callable[[str, Need | None], object]
#: What a user has not taken for that long is added to what comes next, in seconds.
_SAVED_S = 1.0


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


class UserShare:
    """Bounds of one user, whatever key or token is shown: open streams, and the bytes moved in a second."""

    def __init__(self, user: str) -> None:
        self.user = user
        self.streams: Counter[str] = Counter()  # by method
        self.received, self.sent = ByteRate(), ByteRate()

    def limit(self, limits: UserLimits) -> None:
        """Keep to limits from now on."""
        self.received.change(limits.in_bytes_per_s)
        self.sent.change(limits.out_bytes_per_s)


class Caller:
    """The caller of a server that asks nobody for a key: they may do everything."""

    #: The name of the user; empty where there are none.
    user = ""
    #: True if nothing has to be left out of a list.
    sees_all = True
    #: Bounds of what the user sends, and of what is sent to the user; None for callers that are no users.
    received: ByteRate | None = None
    sent: ByteRate | None = None

    def check(self, request: Any, key: Hashable = None) -> None:
        """Raise `AccessDenied` unless the caller may make a request."""

    def allows(self, need: Need) -> bool:
        """Return whether the caller has a right."""
        return True

    def may(self, need: Need) -> bool:
        """Return whether the caller has a right that it asks about; it is not remembered."""
        return True

    def sees(self, resource: Resource, name: str) -> bool:
        """Return whether the caller may see a name in a list; it is not remembered, since lists are long."""
        return True


#: Of servers that ask nobody for a key.
ANY_CALLER = Caller()

_current: ContextVar[Caller] = ContextVar("minimq-caller", default=ANY_CALLER)


def current_caller() -> Caller:
    """Return whose call the present task serves."""
    return _current.get()


def serve_as(caller: Caller) -> None:
    """Note whose call the present task serves, and those that it begins."""
    _current.set(caller)


class KnownCaller(Caller):
    """A caller that has shown a key or a token. Lives on the event loop of the server; one for all calls with that."""

    def __init__(
        self,
        user: str,
        decide: Decide,
        denied: Denied,
        *,
        sees_all: bool = False,
        shown: str = "key",
        share: UserShare | None = None,
        most: int = MOST_DECISIONS,
    ) -> None:
        self.user = user
        self._shown = shown
        self._most = most
        self.sees_all = sees_all
        self._decide = decide
        self._denied = denied
        self._decisions: dict[Need, bool] = {}
        self._passed: set[Hashable] = set()
        self._streams: set[LiveStream] = set()
        self._share = share or UserShare(user)
        if share is not None:
            self.received, self.sent = share.received, share.sent
        self._forgot = False
        self._is_let_go = False

    def check(self, request: Any, key: Hashable = None) -> None:
        """Raise `AccessDenied` unless the caller may make a request."""
        if key is not None and key in self._passed:
            return
        self._check_in_force()
        for need in needs_of(request):
            self._require(need)
        if key is not None:
            if len(self._passed) >= self._most:
                self._passed.clear()
            self._passed.add(key)

    def allows(self, need: Need) -> bool:
        """Return whether the caller has a right."""
        found = self._decisions.get(need)
        if found is None:
            if len(self._decisions) >= self._most:
                self._decisions.clear()
                self._passed.clear()
                self._forgot = True
            found = self._decisions[need] = self._decide(need).allowed
        return found

    def may(self, need: Need) -> bool:
        """Return whether the caller has a right that it asks about."""
        return self._decide(need).allowed

    def sees(self, resource: Resource, name: str) -> bool:
        """Return whether the caller may see a name in a list."""
        return self.sees_all or self._decide(Need(Verb.DESCRIBE, resource, name)).allowed

    @property
    def is_streaming(self) -> bool:
        """True while it has a stream."""
        return bool(self._streams)

    @contextmanager
    def streaming(self, method: str = "", most: float = math.inf) -> Iterator[None]:
        """Count the present task as a stream of this caller. Raises why, when the stream is ended for that."""
        self._check_in_force()
        open_streams = self._share.streams
        if open_streams[method] >= most:
            raise SystemBusy(
                f"user {self.user} has {open_streams[method]} {method} streams open, which is half of what this server "
                "takes, and all that one user may have: close some, or use several users",
                limit="streams",
            )
        open_streams[method] += 1
        try:
            with LiveStream(self._streams):
                yield
        finally:
            open_streams[method] -= 1

    def decide_anew(self, decide: Decide, *, sees_all: bool) -> None:
        """Go by other rules from now on. Streams are ended if a right is lost that they may have been let in by."""
        former = self._decisions
        self._decide, self.sees_all = decide, sees_all
        self._decisions = {need: decide(need).allowed for need in former}
        self._passed.clear()
        has_lost, self._forgot = self._forgot, False
        if has_lost or any(allowed and not self._decisions[need] for need, allowed in former.items()):
            self.end(Unavailable(f"the rights of user {self.user} have changed: reopen this stream"))

    def end(self, reason: MiniMQError) -> None:
        """End all streams; the clients are told why."""
        for stream in [*self._streams]:
            stream.end(reason)

    def revoke(self) -> None:
        """Allow nothing any more, and end all streams; calls whose request is still to come are refused then."""
        self._is_let_go = True
        self._decide, self.sees_all = _never, False
        self._decisions.clear()
        self._passed.clear()
        self.end(Unavailable(f"{self._key} is not in force any more: this stream is ended"))

    def check_kind(self, kind: CallerKind) -> None:
        """Raise `AccessDenied` for a call that only servers may make."""
        if kind is CallerKind.SERVER:
            self._denied(self.user, None)
            raise AccessDenied(
                f"user {self.user} may not do that: only servers of the cluster may, which show the key in cluster.key"
            )

    def enter(self, access: CallAccess) -> None:
        """Raise `AccessDenied` unless the caller may make a call, whatever its requests say."""
        self.check_kind(access.kind)
        self._check_in_force()
        if access.need is not None:
            self._require(access.need)

    @property
    def _key(self) -> str:
        return f"the {self._shown} of user {self.user}"

    def _check_in_force(self) -> None:
        if self._is_let_go:
            raise NotAuthenticated(f"{self._key} is not in force any more")

    def _require(self, need: Need) -> None:
        if not self.allows(need):
            self._denied(self.user, need)
            raise AccessDenied(refused(self.user, self._decide(need)))


class ServerCaller(KnownCaller):
    """Another server of the cluster, which has shown the key that all have."""

    def __init__(self, denied: Denied) -> None:
        super().__init__("%servers", _describes, denied, sees_all=True)

    @property
    def _key(self) -> str:
        return "the key of this server, which is not in cluster.key any more,"

    def check_kind(self, kind: CallerKind) -> None:
        """Servers make the calls of servers, and those of users."""

    def enter(self, access: CallAccess) -> None:
        """Raise `AccessDenied` unless servers may make a call."""
        self._check_in_force()
        if access.need is not None and not access.or_server:
            self._require(access.need)


def _describes(need: Need) -> AccessDecision:
    return AccessDecision(need.verb is Verb.DESCRIBE, need)


def _never(need: Need) -> AccessDecision:
    return AccessDecision(False, need)
