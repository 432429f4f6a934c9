"""Users and rules, as `access.toml` has them. Pure."""

from __future__ import annotations

import json
import re
import tomllib

import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_rule import parse_rule
from minimq_common.text_units import listed
from minimq_common.timestamps import moment

#: Maximum size of the file.
MAX_DOCUMENT_BYTES = 1 << 20
_MAX_MS = (1 << 63) - 1

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_PLAIN = re.compile(r"[A-Za-z0-9_-]+")
_HASH = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[a-z2-7]{8}")
_MAX_KEYS = 8
#: Names in a line of the log.
_MAX_LISTED = 20


class StoredKey(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A key as servers store it: its SHA-256, and times in milliseconds since 1970."""

    hash: str
    #: 0 for never.
    expires_ms: int = 0
    #: 0 if unknown.
    created_ms: int = 0

    def is_over(self, now_ms: int) -> bool:
        return 0 < self.expires_ms <= now_ms


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


def from_toml(data: bytes) -> AccessDocument:
    """Parse and check a document in TOML. Raises `InvalidArgument`, with the line where possible."""
    try:
        found = msgspec.convert(tomllib.loads(data.decode()), AccessDocument)
        _check(found)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise InvalidArgument(f"users and rules cannot be read: {error}") from None
    except InvalidArgument as error:
        raise error.with_message(_line_of(data, error.message) + error.message) from None
    return found


def _line_of(data: bytes, message: str) -> str:
    """Return "line N: " for the first line with what an error is about: a quoted text, or else the table of a user."""
    about = re.search(r"'([^']+)'", message) or re.match(r"user (\S+) ", message)
    for number, line in enumerate(data.decode().splitlines() if about else (), 1):
        if about is not None and about[1] in line:
            return f"line {number}: "
    return ""


def to_toml(document: AccessDocument) -> str:
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
        lines += [f"keys.{key_id} = {_inline(key)}" for key_id, key in user.keys.items()]
    return "\n".join(lines) + "\n"


def _key(name: str) -> str:
    return name if _PLAIN.fullmatch(name) else json.dumps(name)


def _listed(texts: tuple[str, ...]) -> str:
    if len(texts) < 2:
        return json.dumps(texts)
    return "".join(["[\n", *(f"    {json.dumps(text)},\n" for text in texts), "]"])


def _inline(key: StoredKey) -> str:
    times = (("created_ms", key.created_ms), ("expires_ms", key.expires_ms))
    text = "".join([f'{{ hash = "{key.hash}"', *(f", {name} = {ms}" for name, ms in times if ms), " }"])
    return f"{text}  # until {moment(key.expires_ms):%Y-%m-%d %H:%M} UTC" if key.expires_ms else text


def changes(former: AccessDocument, later: AccessDocument) -> str:
    """Describe the difference by names, in one line; empty if there is none."""
    before, after = former.users, later.users
    names = {
        "added": after.keys() - before.keys(),
        "removed": before.keys() - after.keys(),
        "changed": {name for name in before.keys() & after.keys() if before[name] != after[name]},
        "roles": {name for name, _ in former.roles.items() ^ later.roles.items()},
    }
    return " ".join(f"{what}={listed(sorted(found), _MAX_LISTED, ',')}" for what, found in names.items() if found)


def _check(document: AccessDocument) -> None:
    for role, rules in document.roles.items():
        _check_name("role", role)
        for rule in rules:
            parse_rule(rule)
    hashes: set[str] = set()
    for name, user in document.users.items():
        _check_user(name, user, document)
        if not hashes.isdisjoint(own := {key.hash for key in user.keys.values()}):
            raise InvalidArgument(f"user {name} has a key that another user has: `minimq user rotate {name}` makes one")
        hashes |= own
    if not document.users:  # a file that was only half written, or a mistake
        raise InvalidArgument("there is no user: `minimq user add` adds one")


def _check_user(name: str, user: User, document: AccessDocument) -> None:
    _check_name("user", name)
    for rule in user.rules:
        parse_rule(rule)
    for role in user.roles:
        if role not in document.roles and role not in BUILT_IN:
            raise InvalidArgument(f"user {name} has the role {role!r}, which is not among [roles]")
    if len(user.keys) > _MAX_KEYS:
        raise InvalidArgument(f"user {name} has {len(user.keys)} keys: the limit is {_MAX_KEYS}")
    for key_id, key in user.keys.items():
        is_in_time = 0 <= key.expires_ms <= _MAX_MS and 0 <= key.created_ms <= _MAX_MS
        if not _KEY_ID.fullmatch(key_id) or not _HASH.fullmatch(key.hash) or not is_in_time:
            raise InvalidArgument(f"user {name} has an invalid key: `minimq user rotate {name}` makes a new one")


def _check_name(kind: str, name: str) -> None:
    if not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is not a valid name for a {kind}: use letters, digits, '.', '_' and '-', at most 63"
        )
    if kind == "role" and name in BUILT_IN:
        raise InvalidArgument(f"the role {name} already exists, and cannot be changed: choose another name")


#: The role that may do everything.
ADMIN = "admin"
BUILT_IN = (ADMIN,)
