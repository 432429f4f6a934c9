"""The people and servers that a server knows: who calls, and until when they may."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from minimq_common.errors import NotAuthenticated, SystemBusy, Unavailable
from minimq_common.security.access_document import NO_LIMITS, AccessDocument
from minimq_common.security.access_policy import AccessDecision, Policy, Principal, Refusal
from minimq_common.security.access_rule import Need, Verb
from minimq_common.security.caller import Decide, KnownCaller, ServerCaller
from minimq_common.security.keyed_channel import HEADER, SCHEME
from minimq_common.security.refusal_log import RefusalLog
from minimq_common.security.shared_access import SharedAccess
from minimq_common.security.user_key import UserKey, hash_of, id_of
from minimq_common.security.user_rates import UserRates

log = logging.getLogger(__name__)

#: Seconds between two looks at what ends by time, and at the keys of servers.
_LOOK_S = 0.4
#: Seconds between two warnings that nothing is refused.
_WARN_S = 60.0
#: When somebody may come back to a server that has just started, in seconds.
_RETRY_S = 0.1
#: By this and the name a certificate names a user, among its alternative names.
USER_URI = "minimq://user/"
_CERTIFICATE_NAMES = "x509_subject_alternative_name"
#: Longest key that is looked at.
_MOST_LETTERS = 200

_HOW = "give the credentials of a user (credentials=, --credentials, MINIMQ_CREDENTIALS)"
_NO_KEY = f"there is no key in this call, and this cluster requires one: {_HOW}, which `minimq user add` makes"
_NO_USER = f"the key in these credentials is not known here, or no longer: {_HOW} that `minimq user rotate` has made"


class AccessControl:
    """Knows callers by their keys, and lets them go when users, rules or keys change. Lives on one event loop.

    Args:
        server_keys: returns the keys of servers.
        shared: the users and rules; while there are none, only servers are let in.
        now_ms: returns the time of day.

    Attributes:
        shared: the users and rules.
        refusals: what was refused.
        rates: of users that have limits.
    """

    def __init__(
        self,
        server_keys: Callable[[], Sequence[UserKey]],
        shared: SharedAccess,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._server_keys = server_keys
        self.shared = shared
        self._now_ms = now_ms
        self._only_reports = shared.only_reports
        self.refusals = RefusalLog(only_reports=shared.only_reports)
        self.rates = UserRates()
        self._denied = self.refusals.request_denied
        self._policy: Policy | None = None
        self._keys: tuple[UserKey, ...] = ()
        self._servers: dict[str, ServerCaller] = {}
        self._users: dict[str, tuple[Principal, KnownCaller]] = {}
        #: Stands for all callers that are let in although they are not known.
        self._unknown = KnownCaller("", _decide_of_unknown, self._denied, sees_all=True)
        self._is_suspended = False
        self._task: asyncio.Task[None] | None = None
        self._changed()
        self._look_at_servers()

    def start(self) -> None:
        """Follow changes from now on."""
        self.shared.listen(self._changed)
        self._task = asyncio.create_task(self._look(), name="access-control")

    async def stop(self) -> None:
        """Follow changes no longer."""
        task, self._task = self._task, None
        if task is not None:
            self.shared.ignore(self._changed)
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> KnownCaller:
        """Return who makes a call.

        Raises:
            NotAuthenticated: they are not known.
            SystemBusy: for a moment after the start.
            Unavailable: users and rules are too old.

        Args:
            metadata: of the call.
        """
        try:
            return self._known(metadata)
        except NotAuthenticated:
            if not self._only_reports:
                raise
            return self._unknown

    def _known(self, metadata: Iterable[tuple[str, str | bytes]]) -> KnownCaller:
        shown = [value for name, value in metadata if name == HEADER]
        if not shown:
            raise self._refusal("none", _NO_KEY)
        text = shown[0]
        if len(shown) > 1 or not isinstance(text, str) or not text.startswith(SCHEME) or len(text) > _MOST_LETTERS:
            raise self._refusal("malformed", _NO_USER)
        key_hash = hash_of(text[len(SCHEME) :])
        server = self._servers.get(key_hash)
        if server is not None:
            return server
        if not self.shared.settled:  # a user that was removed while this server slept may be in its document
            text = "this server has just started, and checks whether users and rules have changed"
            raise SystemBusy(text, retry_after_s=_RETRY_S)
        if refusal := self._too_old():
            raise Unavailable(refusal)
        known = self._users.get(key_hash)
        if known is not None and not known[0].expires_ms:
            return known[1]
        return self._user(key_hash, text[len(SCHEME) :])

    def check_certificate(self, caller: KnownCaller, context: Any) -> None:  # noqa: ANN401 - of any call
        """Raise `NotAuthenticated` if the certificate of a call is that of another user than the key."""
        names = context.auth_context().get(_CERTIFICATE_NAMES, ())
        users = [name for name in names if name.startswith(USER_URI.encode())]
        if users and not isinstance(caller, ServerCaller) and f"{USER_URI}{caller.user}".encode() not in users:
            text = f"the certificate in these credentials is not of user {caller.user}, whose key is beside it"
            refusal = self._refusal("certificate", f"{text}: `minimq secure issue DIR {caller.user}` makes one")
            if not self._only_reports:
                raise refusal

    def _user(self, key_hash: str, key: str) -> KnownCaller:
        policy = self._policy
        found = Refusal.UNKNOWN if policy is None else policy.of_key(key_hash, self._now_ms())
        if isinstance(found, Refusal):
            user = "" if policy is None else policy.user_of(key_hash)
            raise self._refusal(found.value, _why(found, user), key)
        assert policy is not None
        known = self._users.get(key_hash)
        if known is None:
            decide, sees_all = self._decider(policy, found.user), self._sees_all(policy, found.user)
            known = self._users[key_hash] = found, KnownCaller(found.user, decide, self._denied, sees_all=sees_all)
            self._limit(policy, known[1])
        return known[1]

    def _limit(self, policy: Policy, caller: KnownCaller) -> None:
        self.rates.apply(caller, NO_LIMITS if self._only_reports else policy.limits_of(caller.user))

    def _refusal(self, reason: str, text: str, key: str = "") -> NotAuthenticated:
        self.refusals.caller_refused(reason, id_of(key))
        return NotAuthenticated(text)

    # ---- changes ---------------------------------------------------------------------------------

    def _changed(self) -> None:
        """Go by the newest users and rules."""
        document: AccessDocument | None = self.shared.document
        former, policy = self._policy, None if document is None else Policy(document)
        self._policy = policy
        self._let_go()
        if policy is not None:
            for _, caller in self._users.values():
                self._limit(policy, caller)
                if former is None or former.rights_of(caller.user) != policy.rights_of(caller.user):
                    caller.decide_anew(self._decider(policy, caller.user), sees_all=self._sees_all(policy, caller.user))

    def _let_go(self) -> None:
        """End what callers have whose keys are not in force any more."""
        policy, now_ms = self._policy, self._now_ms()
        for key_hash, (_, caller) in [*self._users.items()]:
            found = Refusal.UNKNOWN if policy is None else policy.of_key(key_hash, now_ms)
            if isinstance(found, Refusal) or found.user != caller.user:
                del self._users[key_hash]
                caller.revoke()
                reason = found.value if isinstance(found, Refusal) else "the key is another user's"
                log.info("access: the key of a caller is no longer in force user=%s reason=%r", caller.user, reason)
            else:
                self._users[key_hash] = found, caller

    def _look_at_servers(self) -> None:
        keys = tuple(self._server_keys())
        if keys == self._keys:
            return
        self._keys = keys
        hashes = {key.hash for key in keys}
        for key_hash in [each for each in self._servers if each not in hashes]:
            self._servers.pop(key_hash).revoke()
        for key_hash in hashes:
            self._servers.setdefault(key_hash, ServerCaller(self._denied))

    def _too_old(self) -> str:
        """Return why the copy of users and rules is no longer trusted; empty while it is."""
        return "" if self._only_reports else self.shared.age.refusal

    def _look_at_age(self) -> None:
        refusal = self._too_old()
        if bool(refusal) is self._is_suspended:
            return
        self._is_suspended = bool(refusal)
        if refusal:
            log.warning("access: all users are refused reason=%r", refusal)
        else:
            log.warning("access: users are served again")
        for _, caller in self._users.values():
            if refusal:
                caller.suspend(Unavailable(refusal))
            else:
                caller.resume()

    def _sees_all(self, policy: Policy, user: str) -> bool:
        return self._only_reports or policy.sees_all(user)

    def _decider(self, policy: Policy, user: str) -> Decide:
        def report(need: Need) -> AccessDecision:
            decision = policy.decide(user, need)
            if not decision.allowed and _is_let_in(need):
                self._denied(user, need)
                return AccessDecision(True, need)
            return decision

        return report if self._only_reports else partial(policy.decide, user)

    async def _look(self) -> None:
        warn_at = 0.0
        while True:
            if self._only_reports and time.monotonic() >= warn_at:
                warn_at = time.monotonic() + _WARN_S
                log.warning("access: nothing is refused but changes of users and rules (--access-mode report)")
            await asyncio.sleep(_LOOK_S)
            self._look_at_servers()
            self._look_at_age()
            now_ms = self._now_ms()
            if any(0 < principal.expires_ms <= now_ms for principal, _ in self._users.values()):
                self._let_go()


def _is_let_in(need: Need) -> bool:
    """Return whether nobody is refused for a need while refusals are only reported.

    Users and rules are changed by those alone who may: whoever made themselves an administrator would be one for good.
    """
    return need.verb is not Verb.ACCESS


def _decide_of_unknown(need: Need) -> AccessDecision:
    return AccessDecision(_is_let_in(need), need)


def _why(refusal: Refusal, user: str) -> str:
    if refusal is Refusal.EXPIRED:
        remedy = f"an administrator can make a new one with `minimq user rotate {user}`"
        return f"the key of user {user} has expired: {remedy}"
    if refusal is Refusal.DISABLED:
        return f"user {user} is disabled: an administrator can admit it again with `minimq user enable {user}`"
    return _NO_USER
