"""Authenticates the callers of a server, revokes them when users, rules or keys change, and logs rejected calls."""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from minimq_common.errors import NotAuthenticated, Unavailable
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.security.access_document import AccessDocument, changes
from minimq_common.security.access_policy import Policy, Principal, Rejection
from minimq_common.security.access_rule import Need
from minimq_common.security.caller import KnownCaller, ServerCaller
from minimq_common.security.server_secrets import ServerSecrets
from minimq_common.security.user_key import UserKey, hash_of, id_of
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire.rpc import HEADER, SCHEME

log = logging.getLogger(__name__)
audit = logging.getLogger("minimq.audit")

#: Seconds between two checks of the files and of expiry times.
_CHECK_INTERVAL_S = 0.4
#: Prefix of the alternative name by which a certificate names a user.
USER_URI = "minimq://user/"
_CERTIFICATE_NAMES = "x509_subject_alternative_name"
#: Longer keys are rejected without hashing them.
_MAX_LETTERS = 200

_HOW = "give the credentials of a user (credentials=, --credentials, MINIMQ_CREDENTIALS)"
_NO_KEY = f"there is no key in this call, and this cluster requires one: {_HOW}, which `minimq user add` makes"
_NO_USER = f"the key in these credentials is not known here, or no longer: {_HOW} that `minimq user rotate` has made"

#: Seconds for which a rejection of the same kind is not logged again.
_REPEAT_S = 60.0
#: Kinds that are logged in that time for one user or reason, so that invented keys or names do not fill the log.
_MAX_KINDS = 200

#: Counts as the verb of calls that only servers may make.
SERVER = "server"


class AccessControl(PeriodicTask):
    """Authenticates callers by keys, and follows changes of users, rules and keys. Lives on one event loop."""

    def __init__(
        self,
        server_keys: Callable[[], Sequence[UserKey]],
        users: Callable[[], AccessDocument],
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        super().__init__("access", self.refresh, _CHECK_INTERVAL_S, log)
        self._server_keys, self._users, self._now_ms = server_keys, users, now_ms
        self.rejections = RejectionLog()
        self._policy = Policy(users())
        #: By the hash of the key.
        self._servers: dict[str, ServerCaller] = {}
        self._callers: dict[str, tuple[Principal, KnownCaller]] = {}
        self.refresh()

    def refresh(self) -> None:
        """Apply changes of the files, and end the streams of callers that may not continue."""
        hashes = {key.hash for key in self._server_keys()}
        for key_hash in self._servers.keys() - hashes:
            self._servers.pop(key_hash).revoke()
        for key_hash in hashes - self._servers.keys():
            self._servers[key_hash] = ServerCaller(self.rejections.request_denied)
        former, document, now_ms = self._policy, self._users(), self._now_ms()
        if document is not former.document:
            self._policy = Policy(document)
            if text := changes(former.document, document):
                audit.info("access: users and rules changed %s", text, extra=ALWAYS_WRITTEN)
        elif not any(0 < principal.expires_ms <= now_ms for principal, _ in self._callers.values()):
            return
        for key_hash, (_, caller) in [*self._callers.items()]:
            found = self._policy.of_key(key_hash, now_ms)
            if isinstance(found, Rejection) or found.user != caller.user:
                del self._callers[key_hash]
                caller.revoke()
                continue
            self._callers[key_hash] = found, caller
            caller.use_rules(partial(self._policy.decide, caller.user), sees_all=self._policy.sees_all(caller.user))
            if former.rights_of(caller.user).exceed(self._policy.rights_of(caller.user)):
                caller.end(Unavailable(f"the rights of user {caller.user} have changed: reopen this stream"))

    def identify(self, metadata: Iterable[tuple[str, str | bytes]]) -> KnownCaller:
        """Return the caller of a call. Raises `NotAuthenticated`."""
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
        return self._servers.get(key_hash) or self._user(key_hash, text)

    def check_certificate(self, caller: KnownCaller, context: Any) -> None:
        """Raise `NotAuthenticated` if the certificate and the key of a call belong to different users."""
        names = context.auth_context().get(_CERTIFICATE_NAMES, ())
        users = [name for name in names if name.startswith(USER_URI.encode())]
        if users and not isinstance(caller, ServerCaller) and f"{USER_URI}{caller.user}".encode() not in users:
            text = (
                f"the certificate in these credentials is not of user {caller.user}, whose key is beside it: "
                f"`minimq secure issue DIR {caller.user}` makes one"
            )
            raise self._rejection("certificate", text)

    def _user(self, key_hash: str, key: str) -> KnownCaller:
        now_ms = self._now_ms()
        known = self._callers.get(key_hash)
        if known is not None and not 0 < known[0].expires_ms <= now_ms:
            return known[1]
        found = self._policy.of_key(key_hash, now_ms)
        if isinstance(found, Rejection):
            raise self._rejection(found.value, _why(found, self._policy.user_of(key_hash)), key)
        decide, sees_all = partial(self._policy.decide, found.user), self._policy.sees_all(found.user)
        caller = KnownCaller(found.user, decide, self.rejections.request_denied, sees_all=sees_all)
        self._callers[key_hash] = found, caller
        return caller

    def _rejection(self, reason: str, text: str, key: str = "") -> NotAuthenticated:
        self.rejections.caller_rejected(reason, id_of(key))
        return NotAuthenticated(text)


class RejectionLog:
    """Counts rejected calls, and logs each kind once a minute. Lives on one event loop; any thread may read counts."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began_at = clock()
        #: By user or reason: the kinds that were logged in this minute.
        self._logged: defaultdict[str, set[str]] = defaultdict(set)
        self.unauthenticated: Counter[str] = Counter()
        self.denied: Counter[str] = Counter()

    def caller_rejected(self, reason: str, key_id: str) -> None:
        self.unauthenticated[reason] += 1
        self._note("access: a caller is rejected reason=%s key=%s", reason, key_id or "-")

    def request_denied(self, user: str, need: Need | None) -> None:
        """Record a request without the necessary right; without `need`, a call that only servers may make."""
        self.denied[SERVER if need is None else need.verb.value] += 1
        self._note(
            "access: a request is rejected user=%s need=%r", user, "to be a server" if need is None else str(need)
        )

    def _note(self, text: str, who: str, what: str) -> None:
        now = self._clock()
        if now >= self._began_at + _REPEAT_S:
            self._began_at = now
            self._logged.clear()
        kinds = self._logged[who]
        if what not in kinds and len(kinds) < _MAX_KINDS:
            kinds.add(what)
            audit.warning(text, who, what, extra=ALWAYS_WRITTEN)


def control_of(secrets: ServerSecrets | None) -> AccessControl | None:
    """Return the access control of a server; None if callers need no keys."""
    if secrets is None:
        return None
    if not secrets.requires_keys:
        log.warning("access: no keys are required, since --secrets has no cluster.key")
        return None
    return AccessControl(secrets.keys, secrets.users)


def _why(rejection: Rejection, user: str) -> str:
    if rejection is Rejection.EXPIRED:
        return f"the key of user {user} has expired: `minimq user rotate {user}` makes a new one"
    if rejection is Rejection.DISABLED:
        return f"user {user} is disabled: an administrator can remove that line from access.toml"
    return _NO_USER
