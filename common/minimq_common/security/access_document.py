"""Users and rules: one document with a version, the same on all servers.

TOML for people, JSON between servers. Pure.
"""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Callable, Iterator

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_rule import parse_rule
from minimq_common.timestamps import moment
from minimq_common.wire.protocol_bounds import MAX_DOCUMENT_BYTES

MAX_VERSION = (1 << 63) - 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[a-z2-7]{8}")
_MAX_KEYS = 8


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as servers store it: its SHA-256, and times in milliseconds since 1970."""

    hash: str
    #: 0 for never.
    expires_ms: int = 0
    #: 0 if unknown.
    created_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms

    def lifetime(self, now_ms: int) -> str:
        """Return its expiry as text; empty if it does not expire."""
        if not self.expires_ms:
            return ""
        return f"{'expired' if self.is_over(now_ms) else 'until'} {moment(self.expires_ms):%Y-%m-%d %H:%M} UTC"


class User(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A user, with its keys, roles and own rules."""

    #: By id; two during a rotation.
    keys: dict[str, StoredKey] = {}
    roles: tuple[str, ...] = ()
    rules: tuple[str, ...] = ()
    disabled: bool = False


class AccessDocument(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All users and roles, by name."""

    users: dict[str, User] = {}
    roles: dict[str, tuple[str, ...]] = {}
    #: Orders the documents that servers exchange; not in the file.
    version: int = 0

    def encoded(self) -> bytes:
        """Encode as JSON; equal documents have equal bytes."""
        return msgspec.json.encode(self, order="sorted")

    @property
    def digest(self) -> str:
        """The SHA-256 of the encoded document."""
        return hashlib.sha256(self.encoded()).hexdigest()


def decode(data: bytes) -> AccessDocument:
    """Decode and check a document from another server. Raises `InvalidArgument`."""
    return _checked(data, lambda: msgspec.json.decode(data, type=AccessDocument))


def from_toml(data: bytes) -> AccessDocument:
    """Parse and check a document in TOML. Raises `InvalidArgument`, with the line where possible."""
    try:
        return _checked(data, lambda: msgspec.convert(tomllib.loads(data.decode()), AccessDocument))
    except InvalidArgument as error:
        raise error.with_message(_line_of(data, error.message) + error.message) from None


def _line_of(data: bytes, message: str) -> str:
    """Return "line N: " for the first line with what an error is about: a quoted text, or else the table of a user."""
    about = re.search(r"'([^']+)'", message) or re.match(r"user (\S+) ", message)
    for number, line in enumerate(data.decode(errors="replace").splitlines() if about else (), 1):
        if about is not None and about[1] in line:
            return f"line {number}: "
    return ""


def to_toml(document: AccessDocument, now_ms: int = 0) -> str:
    """Format a document as TOML, with comments; `from_toml` reads it."""
    lines = ["# Users and rules. `minimq user` edits this file; servers apply it within 2 seconds of a change."]
    if document.roles:
        lines += ["", "[roles]", *(f"{_key(name)} = {_listed(rules)}" for name, rules in document.roles.items())]
    for name, user in document.users.items():
        lines += ["", f"[users.{_key(name)}]"]
        lines += [
            f"{field} = {_listed(given)}" for field, given in (("roles", user.roles), ("rules", user.rules)) if given
        ]
        lines += ["disabled = true"] if user.disabled else []
        lines += [f"keys.{key_id} = {_inline(key, now_ms)}" for key_id, key in user.keys.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _listed(texts: tuple[str, ...]) -> str:
    if len(texts) < 2:
        return json.dumps(texts)
    return "".join(["[\n", *(f"    {json.dumps(text)},\n" for text in texts), "]"])


def _inline(key: StoredKey, now_ms: int) -> str:
    times = (("created_ms", key.created_ms), ("expires_ms", key.expires_ms))
    text = "".join([f'{{ hash = "{key.hash}"', *(f", {name} = {ms}" for name, ms in times if ms), " }"])
    lifetime = key.lifetime(now_ms)
    return f"{text}  # {lifetime}" if lifetime else text


def changes(former: AccessDocument | None, later: AccessDocument) -> Iterator[str]:
    """Yield lines about all changes for the audit log, without hashes of keys."""
    before = former or AccessDocument()
    for kind, old, new in (("user", before.users, later.users), ("role", before.roles, later.roles)):
        for name in sorted(old.keys() | new.keys()):
            if name not in new:
                yield f"{kind} {name} removed"
            elif name not in old:
                yield f"{kind} {name} added: {_shown(new[name])}"
            elif old[name] != new[name]:
                yield f"{kind} {name} changed: {_shown(old[name])} -> {_shown(new[name])}"


def _shown(value: User | tuple[str, ...]) -> str:
    if isinstance(value, tuple):
        return "; ".join(value) or "no rules"
    keys = ", ".join(
        f"{key_id}{f' until {key.expires_ms}' if key.expires_ms else ''}" for key_id, key in value.keys.items()
    )
    parts = (f"keys {keys or '-'}", f"roles {', '.join(value.roles) or '-'}", f"rules {'; '.join(value.rules) or '-'}")
    return f"{', '.join(parts)}{', disabled' if value.disabled else ''}"


def _checked(data: bytes, read: Callable[[], AccessDocument]) -> AccessDocument:
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InvalidArgument(
            f"the document of users and rules has {len(data)} bytes: the limit is {MAX_DOCUMENT_BYTES}"
        )
    try:
        found = read()
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"the document of users and rules cannot be read: {error}") from None
    for role, rules in found.roles.items():
        _check_name("role", role)
        for rule in rules:
            parse_rule(rule)
    hashes: set[str] = set()
    for name, user in found.users.items():
        _check_user(name, user, found)
        if not hashes.isdisjoint(own := {key.hash for key in user.keys.values()}):
            raise InvalidArgument(f"user {name} has a key that another user has: `minimq user rotate {name}` makes one")
        hashes |= own
    return found


def _check_user(name: str, user: User, document: AccessDocument) -> None:
    _check_name("user", name)
    for rule in user.rules:
        parse_rule(rule)
    for role in user.roles:
        if role not in document.roles and role not in BUILT_IN:
            raise InvalidArgument(f"user {name} has the role {role!r}, which the document does not have")
    if len(user.keys) > _MAX_KEYS:
        raise InvalidArgument(f"user {name} has {len(user.keys)} keys: the limit is {_MAX_KEYS}")
    for key_id, key in user.keys.items():
        is_in_time = 0 <= key.expires_ms <= MAX_VERSION and 0 <= key.created_ms <= MAX_VERSION
        if not _KEY_ID.fullmatch(key_id) or not _HASH.fullmatch(key.hash) or not is_in_time:
            raise InvalidArgument(f"user {name} has an invalid key: `minimq user rotate {name}` makes a new one")


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(f"{name!r} is no name for a {kind}: use letters, digits, '.', '_' and '-', 63 at most")
    if kind == "role" and name in BUILT_IN:
        raise InvalidArgument(f"the role {name} already exists, and cannot be changed: choose another name")


#: The role that may do everything.
ADMIN = "admin"
BUILT_IN = (ADMIN,)
