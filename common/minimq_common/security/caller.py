"""The caller of the current call, and its rights."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

from minimq_common.errors import AccessDenied, MinimqError, NotAuthenticated, Unavailable
from minimq_common.security.access_policy import AccessDecision, rejected
from minimq_common.security.access_rule import Need, Resource, Verb
from minimq_common.security.needs import CallAccess, CallerKind, needs_of
from minimq_common.wire.rpc import LiveStream

#: Cached decisions, and cached requests, per caller.
MAX_DECISIONS = 4_096

#: Decides whether a user has a right, and why.
Decide = Callable[[Need], AccessDecision]
#: Called with the user and the missing right; None for a call that only servers may make.
Denied = Callable[[str, Need | None], object]


class Caller:
    """The caller of a server that requires no keys. It may do everything."""

    #: The name of the user; empty without users.
    user = ""
    #: Stands for the user where the name is too long, such as in the log of a broker; 0 without users.
    tag = 0
    #: True if lists need no filtering.
    sees_all = True

    def check(self, request: Any, key: Hashable = None) -> None:
        """Raise `AccessDenied` unless the caller may make a request. Allowed requests are cached by `key`."""

    def allows(self, need: Need) -> bool:
        return True

    def sees(self, resource: Resource, name: str) -> bool:
        """Return whether the caller may see a name in a list."""
        return True


#: For servers that require no keys.
ANY_CALLER = Caller()

_current: ContextVar[Caller] = ContextVar("minimq-caller", default=ANY_CALLER)


def current_caller() -> Caller:
    """Return the caller whose call the current task serves."""
    return _current.get()


def serve_as(caller: Caller) -> None:
    """Set the caller of the current task, and of the tasks that it creates."""
    _current.set(caller)


class KnownCaller(Caller):
    """A caller with a key; the same object for all calls with that. Lives on the server's event loop."""

    def __init__(self, user: str, decide: Decide, denied: Denied, *, sees_all: bool = False) -> None:
        self.user = user
        #: 64 bits that no other user name has; never 0.
        self.tag = int.from_bytes(hashlib.blake2b(user.encode(), digest_size=8).digest(), "little") or 1
        self._denied = denied
        self._passed: set[Hashable] = set()
        self.use_rules(decide, sees_all=sees_all)
        self._streams: set[LiveStream] = set()
        self._is_revoked = False

    def check(self, request: Any, key: Hashable = None) -> None:
        if key is not None and key in self._passed:
            return
        self._check_in_force()
        for need in needs_of(request):
            self._require(need)
        if key is not None:
            if len(self._passed) >= MAX_DECISIONS:
                self._passed.clear()
            self._passed.add(key)

    def allows(self, need: Need) -> bool:
        return self._decide(need).allowed

    def sees(self, resource: Resource, name: str) -> bool:
        return self.sees_all or self.allows(Need(Verb.DESCRIBE, resource, name))

    @contextmanager
    def streaming(self) -> Iterator[None]:
        """Register the current task as a stream of this caller. Raises the reason if `end` ends the stream."""
        self._check_in_force()
        with LiveStream(self._streams):
            yield

    def use_rules(self, decide: Decide, *, sees_all: bool) -> None:
        """Decide by other rules from now on."""
        self._decide, self.sees_all = lru_cache(MAX_DECISIONS)(decide), sees_all
        self._passed.clear()

    def end(self, reason: MinimqError) -> None:
        for stream in [*self._streams]:
            stream.end(reason)

    def revoke(self) -> None:
        """End all streams; calls that have not sent their request will be rejected."""
        self._is_revoked = True
        self._passed.clear()
        self.end(Unavailable(f"{self._key} is not in force any more: this stream is ended"))

    def enter(self, access: CallAccess) -> None:
        """Raise `AccessDenied` unless the caller may make a call at all."""
        if access.kind is CallerKind.SERVER:
            self._denied(self.user, None)
            raise AccessDenied(
                f"user {self.user} may not do that: only servers of the cluster may, which show the key in cluster.key"
            )
        self._check_in_force()
        if access.need is not None:
            self._require(access.need)

    @property
    def _key(self) -> str:
        return f"the key of user {self.user}"

    def _check_in_force(self) -> None:
        if self._is_revoked:
            raise NotAuthenticated(f"{self._key} is not in force any more")

    def _require(self, need: Need) -> None:
        decision = self._decide(need)
        if not decision.allowed:
            self._denied(self.user, need)
            raise AccessDenied(rejected(self.user, decision))


class ServerCaller(KnownCaller):
    """Another server of the cluster, with a key from cluster.key."""

    def __init__(self, denied: Denied) -> None:
        super().__init__(
            "%servers", lambda need: AccessDecision(need.verb is Verb.DESCRIBE, need), denied, sees_all=True
        )

    @property
    def _key(self) -> str:
        return "the key of this server, which is not in cluster.key any more,"

    def enter(self, access: CallAccess) -> None:
        self._check_in_force()
        if access.need is not None and not access.or_server:
            self._require(access.need)
