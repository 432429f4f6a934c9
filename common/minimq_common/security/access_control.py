"""Authenticates the callers of a server, revokes them when users, rules or keys change, and logs rejected calls."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from minimq_common.errors import NotAuthenticated, SystemBusy, Unavailable
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.security.access_document import AccessDocument
from minimq_common.security.access_policy import AccessDecision, Policy, Principal, Rejection
from minimq_common.security.access_rule import Need, Verb
from minimq_common.security.caller import Decide, KnownCaller, ServerCaller
from minimq_common.security.shared_access import SharedAccess
from minimq_common.security.user_key import UserKey, hash_of, id_of
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire.rpc import HEADER, SCHEME

log = logging.getLogger(__name__)
audit = logging.getLogger("minimq.audit")

#: Seconds between two checks of expiry times and of the keys of servers.
_LOOK_S = 0.4
#: Seconds between two warnings that this server only reports.
_WARN_S = 60.0
#: Retry delay for callers of a server that has just started.
_RETRY_S = 0.1
#: Prefix of the alternative name by which a certificate names a user.
USER_URI = "minimq://user/"
_CERTIFICATE_NAMES = "x509_subject_alternative_name"
#: Longer keys are rejected without hashing them.
_MAX_LETTERS = 200

_HOW = "give the credentials of a user (credentials=, --credentials, MINIMQ_CREDENTIALS)"
_NO_KEY = f"there is no key in this call, and this cluster requires one: {_HOW}, which `minimq user add` makes"
_NO_USER = f"the key in these credentials is not known here, or no longer: {_HOW} that `minimq user rotate` has made"

#: Minimum seconds between two log lines about the same kind of rejection.
_REPEAT_S = 60.0
#: Kinds logged per interval for one user (or one reason, if the caller is unknown), and users and reasons in total.
#: Further ones are logged together as "others", so invented keys or names cannot keep other rejections out of the log.
_MAX_KINDS, _MAX_LOGGED = 200, 10_000
_OTHERS = "others"

#: Counts as the verb of calls that only servers may make.
SERVER = "server"


class _UserCaller(KnownCaller):
    principal: Principal


class AccessControl:
    """Authenticates callers by keys, and revokes them after changes. Lives on one event loop."""

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
        self.rejections = RejectionLog(only_reports=shared.only_reports)
        self._denied = self.rejections.request_denied
        self._policy: Policy | None = None
        self._keys: tuple[UserKey, ...] = ()
        self._servers: dict[str, ServerCaller] = {}
        self._users: dict[str, _UserCaller] = {}
        #: The caller of all unauthenticated calls while this server only reports.
        self._unknown = KnownCaller("", _decide_for_unknown, self._denied, sees_all=True)
        self._is_suspended = False
        self._task = PeriodicTask("access", self._look, _LOOK_S, log)
        self._warn_at = 0.0
        self._changed()
        self._refresh_server_keys()

    def start(self) -> None:
        """Start to follow changes of users, rules and keys."""
        self.shared.listen(self._changed)
        self._warn()
        self._task.start()

    async def stop(self) -> None:
        self.shared.ignore(self._changed)
        await self._task.stop()

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> KnownCaller:
        """Return the caller of a call.

        Raises `NotAuthenticated`; `SystemBusy` or `Unavailable` while users and rules here may be outdated.
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
            raise self._rejection("none", _NO_KEY)
        text = shown[0]
        if len(shown) > 1 or not isinstance(text, str) or not text.startswith(SCHEME):
            raise self._rejection("malformed", _NO_USER)
        text = text[len(SCHEME) :]
        if len(text) > _MAX_LETTERS:
            raise self._rejection("malformed", _NO_USER)
        key_hash = hash_of(text)
        server = self._servers.get(key_hash)
        if server is not None:
            return server
        if not self.shared.settled.is_set():  # a user may have been removed while this server was down
            reason = "this server has just started, and checks whether users and rules have changed"
            raise SystemBusy(reason, retry_after_s=_RETRY_S)
        if rejection := self._too_old():
            raise Unavailable(rejection)
        known = self._in_force(key_hash)
        if known is not None:
            return known
        return self._user(key_hash, text)

    def _in_force(self, key_hash: str) -> _UserCaller | None:
        known = self._users.get(key_hash)
        return None if known is None or 0 < known.principal.expires_ms <= self._now_ms() else known

    def check_certificate(self, caller: KnownCaller, context: Any) -> None:
        """Raise `NotAuthenticated` if the certificate and the key of a call belong to different users."""
        names = context.auth_context().get(_CERTIFICATE_NAMES, ())
        users = [name for name in names if name.startswith(USER_URI.encode())]
        if users and not isinstance(caller, ServerCaller) and f"{USER_URI}{caller.user}".encode() not in users:
            text = (
                f"the certificate in these credentials is not of user {caller.user}, whose key is beside it: "
                f"`minimq secure issue DIR {caller.user}` makes one"
            )
            rejection = self._rejection("certificate", text)
            if not self._only_reports:
                raise rejection

    def _user(self, key_hash: str, key: str) -> KnownCaller:
        policy = self._policy
        found = Rejection.UNKNOWN if policy is None else policy.of_key(key_hash, self._now_ms())
        if isinstance(found, Rejection):
            user = "" if policy is None else policy.user_of(key_hash)
            raise self._rejection(found.value, _why(found, user), key)
        return self._users.get(key_hash) or self._add(key_hash, found)

    def _add(self, key_hash: str, found: Principal) -> KnownCaller:
        policy, user = self._policy, found.user
        assert policy is not None
        caller = _UserCaller(user, self._decider(policy, user), self._denied, sees_all=self._sees_all(policy, user))
        caller.principal = found
        self._users[key_hash] = caller
        return caller

    def _rejection(self, reason: str, text: str, key: str = "") -> NotAuthenticated:
        self.rejections.caller_rejected(reason, id_of(key))
        return NotAuthenticated(text)

    # ---- changes ---------------------------------------------------------------------------------

    def _changed(self) -> None:
        document: AccessDocument | None = self.shared.document
        former, policy = self._policy, None if document is None else Policy(document)
        self._policy = policy
        self._let_go()
        if policy is not None:
            for caller in self._users.values():
                user = caller.user
                rights = None if former is None else former.rights_of(user)
                if rights != policy.rights_of(user):
                    caller.change_rules(self._decider(policy, user), sees_all=self._sees_all(policy, user))

    def _let_go(self) -> None:
        now_ms = self._now_ms()
        for key_hash, caller in [*self._users.items()]:
            found = Rejection.UNKNOWN if self._policy is None else self._policy.of_key(key_hash, now_ms)
            if isinstance(found, Principal) and found.user == caller.user:
                caller.principal = found
                continue
            self._users.pop(key_hash).revoke()
            reason = found.value if isinstance(found, Rejection) else "the key is another user's"
            log.info("access: the key of a caller is no longer in force user=%s reason=%r", caller.user, reason)

    def _refresh_server_keys(self) -> None:
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
        return "" if self._only_reports else self.shared.age.rejection

    def _check_age(self) -> None:
        rejection = self._too_old()
        if bool(rejection) is self._is_suspended:
            return
        self._is_suspended = bool(rejection)
        if not rejection:
            log.warning("access: users are served again")
            return
        log.warning("access: all users are rejected reason=%r", rejection)
        for caller in self._users.values():
            caller.end(Unavailable(rejection))

    def _sees_all(self, policy: Policy, user: str) -> bool:
        return self._only_reports or policy.sees_all(user)

    def _decider(self, policy: Policy, user: str) -> Decide:
        def report(need: Need) -> AccessDecision:
            decision = policy.decide(user, need)
            is_reported = not decision.allowed and _is_only_reported(need)
            return AccessDecision(True, need, only_reported=True) if is_reported else decision

        return report if self._only_reports else partial(policy.decide, user)

    def _look(self) -> None:
        self._warn()
        self._refresh_server_keys()
        self._check_age()
        now_ms = self._now_ms()
        if any(0 < known.principal.expires_ms <= now_ms for known in self._users.values()):
            self._let_go()

    def _warn(self) -> None:
        if self._only_reports and time.monotonic() >= self._warn_at:
            self._warn_at = time.monotonic() + _WARN_S
            log.warning("access: nothing is rejected but changes of users and rules (--access-mode report)")


class RejectionLog:
    """Counts rejected calls, and logs each kind once a minute. Lives on one event loop; any thread may read counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, only_reports: bool = False) -> None:
        self._clock = clock
        self._is = "would be" if only_reports else "is"
        self._began_at = clock()
        #: By user or reason: counts by kind in this minute, and in the latest minute with rejections.
        self._counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._before: dict[str, Counter[str]] = {}
        self.unauthenticated: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def caller_rejected(self, reason: str, key_id: str) -> None:
        self.unauthenticated[reason] += 1
        self._note(f"access: a caller {self._is} rejected reason=%s key=%s", reason, key_id or "-")

    def request_denied(self, user: str, need: Need | None) -> None:
        """Record a request without the necessary right; without `need`, a call that only servers may make."""
        self.denied[SERVER if need is None else need.verb.value] += 1
        wanted = "to be a server" if need is None else str(need)
        self._note(f"access: a request {self._is} rejected user=%s need=%r", user, wanted)

    def _note(self, text: str, who: str, what: str) -> None:
        now = self._clock()
        if now >= self._began_at + _REPEAT_S:
            self._before = _merged_counts(self._before, self._counts)
            self._began_at, self._counts = now, defaultdict(Counter)
        if who not in self._counts and len(self._counts) >= _MAX_LOGGED:
            who = _OTHERS
        kinds = self._counts[who]
        if what not in kinds and len(kinds) >= _MAX_KINDS:
            what = _OTHERS
        kinds[what] += 1
        if kinds[what] == 1:
            more = self._before[who][what] - 1 if who in self._before else 0
            audit.warning(f"{text} before=%d", who, what, max(more, 0), extra=ALWAYS_WRITTEN)


def _merged_counts(former: dict[str, Counter[str]], later: dict[str, Counter[str]]) -> dict[str, Counter[str]]:
    found = {**(former if len(former) < _MAX_LOGGED else {}), **later}
    for who in former.keys() & later.keys():
        if len(former[who]) < _MAX_KINDS:
            found[who] = Counter({**former[who], **later[who]})
    return found


def _is_only_reported(need: Need) -> bool:
    # Changes of users and rules are always checked: otherwise anyone could become an administrator, permanently.
    return need.verb is not Verb.ACCESS


def _decide_for_unknown(need: Need) -> AccessDecision:
    return AccessDecision(_is_only_reported(need), need)


def _why(rejection: Rejection, user: str) -> str:
    if rejection is Rejection.EXPIRED:
        remedy = f"an administrator can make a new one with `minimq user rotate {user}`"
        return f"the key of user {user} has expired: {remedy}"
    if rejection is Rejection.DISABLED:
        return f"user {user} is disabled: an administrator can remove that line from access.toml"
    return _NO_USER
