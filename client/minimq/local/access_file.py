"""Changes of users and rules in `access.toml`. Servers that have the folder re-read it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from minimq.admin.views import PlanRow
from minimq.local.certificate_authority import CertificateAuthority, issue_key
from minimq.local.secret_files import check_new, lock_folder, new_file_ready, put_files
from minimq.options import DEFAULT_NAMESERVER, nameserver_addresses
from minimq_common.errors import InvalidArgument
from minimq_common.files.text_file import read_text_file
from minimq_common.security.access_document import MAX_DOCUMENT_BYTES, AccessDocument, User, from_toml, to_toml
from minimq_common.security.access_policy import AccessDecision, Policy, check_decides
from minimq_common.security.access_rule import need_of, parse_rule
from minimq_common.security.certificates import Trust
from minimq_common.security.credentials import Credentials
from minimq_common.security.credentials_file import CredentialsFile, about_user, written
from minimq_common.security.server_secrets import ACCESS, ROOTS
from minimq_common.security.user_key import UserKey
from minimq_common.text_units import check_path
from minimq_common.timestamps import moment

#: Maximum number of keys of a user: the one in use, and its replacement.
_MAX_KEYS = 2
#: Maximum lifetime of a key in seconds, beyond any real clock.
_MAX_LIFETIME_S = 1e13


class AccessFile:
    """The users and rules in a folder of `minimq secure init`, or in that of its servers."""

    def __init__(self, directory: Path, *, dry_run: bool = False) -> None:
        #: What the last change has changed, or would change in a dry run.
        self.rows: list[PlanRow] = []
        self._dry_run = dry_run
        inner = directory / "server"
        self._folder = inner if (inner / ACCESS).exists() else directory
        self._authority = CertificateAuthority(directory) if self._folder is inner else None
        self.path = self._folder / ACCESS
        if not self.path.exists():
            raise InvalidArgument(
                f"{directory} has no {ACCESS}: `minimq secure init DIR` makes a folder that has one, for --secrets DIR"
            )

    def read(self) -> AccessDocument:
        try:
            return from_toml(read_text_file(self.path, MAX_DOCUMENT_BYTES))
        except InvalidArgument as error:
            raise InvalidArgument(f"{self.path}: {error.message}") from None

    def can(self, user: str, verb: str, resource: str, name: str = "") -> AccessDecision:
        need = need_of(verb, resource, name)
        return Policy(self.read()).answer(user, need, time.time_ns() // 1_000_000)

    def add(
        self,
        name: str,
        rules: Iterable[str] = (),
        roles: Iterable[str] = (),
        *,
        lifetime_s: float | None = None,
        to: Path | None = None,
        nameservers: Sequence[str] = (),
    ) -> str:
        """Add a user; return its credentials, which contain the only copy of its key, or write them to a new file."""
        added, chosen = _checked(rules), tuple(roles)

        def user(document: AccessDocument) -> User:
            if name in document.users:
                raise InvalidArgument(
                    f"user {name} exists already: `minimq user allow {name}` gives more rights, "
                    f"`minimq user rotate {name}` another key"
                )
            return User(roles=chosen, rules=added)

        return self._issue(name, user, lifetime_s, to, nameservers)

    def rotate(
        self,
        name: str,
        *,
        delete_old: bool = False,
        lifetime_s: float | None = None,
        to: Path | None = None,
        nameservers: Sequence[str] = (),
    ) -> str:
        """Make another key; return the credentials as `add`. `to` may exist if it has a key of this user."""

        def user(document: AccessDocument) -> User:
            found = _user(document, name)
            if delete_old:
                return replace(found, keys={})
            if len(found.keys) >= _MAX_KEYS:
                raise InvalidArgument(
                    f"user {name} has {len(found.keys)} keys already: `minimq user delete-old-keys {name}` deletes all "
                    "but the latest"
                )
            return found

        former = self._former(name, to) if to is not None and to.exists() else None
        return self._issue(name, user, lifetime_s, to, nameservers, former)

    def delete_old_keys(self, name: str) -> None:
        """Delete all keys of a user except the latest."""

        def latest(user: User) -> User:
            if len(user.keys) < 2:
                raise InvalidArgument(f"user {name} has no former key: nothing was deleted")
            return replace(user, keys=dict([max(user.keys.items(), key=lambda key: key[1].created_ms)]))

        self.change_user(name, latest)

    def allow(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> User:
        """Add rules and roles to a user; return it. A rule that denies exactly the same is removed."""
        added, more = _checked(rules), tuple(roles)
        undone = {f"deny {rule.removeprefix('allow ')}" for rule in added}

        def add(user: User) -> User:
            kept = [rule for rule in user.rules if rule not in undone]
            return replace(user, rules=_once(*kept, *added), roles=_once(*user.roles, *more))

        return self.change_user(name, add)

    def delete_rules(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> User:
        """Delete rules and roles of a user, who must have all of them; return the user."""
        gone, left = _checked(rules), tuple(roles)

        def remove(user: User) -> User:
            if missing := sorted({*gone, *left} - {*user.rules, *user.roles}):
                raise InvalidArgument(
                    f"user {name} does not have {missing[0]!r}: `minimq user list` shows the roles and rules"
                )
            return replace(
                user,
                rules=tuple(rule for rule in user.rules if rule not in gone),
                roles=tuple(role for role in user.roles if role not in left),
            )

        return self.change_user(name, remove)

    def remove(self, name: str) -> None:
        """Remove a user with its keys and rules."""

        def without(document: AccessDocument) -> AccessDocument:
            _user(document, name)
            return replace(document, users={other: user for other, user in document.users.items() if other != name})

        self._change(without)

    def change_user(self, name: str, change: Callable[[User], User]) -> User:
        later = self._change(lambda document: _with(document, name, change(_user(document, name))))
        return later.users[name]

    def _issue(
        self,
        name: str,
        user: Callable[[AccessDocument], User],
        lifetime_s: float | None,
        to: Path | None,
        nameservers: Sequence[str],
        former: Trust | None = None,
    ) -> str:
        if lifetime_s is not None and not 0 < lifetime_s <= _MAX_LIFETIME_S:
            raise InvalidArgument(f"--lifetime is {lifetime_s:g} s: it must be above 0, or be left out")
        check_path("--to", str(to or ""))
        key, stored = issue_key(lifetime_s)

        def change(document: AccessDocument) -> AccessDocument:
            found = user(document)
            return _with(document, name, replace(found, keys={**found.keys, key.id: stored}))

        if self._dry_run:
            if to is not None and former is None:
                check_new(to)
            self._change(change)
            return ""
        text = self._credentials(name, key, nameservers, former)
        with new_file_ready(to, text, replaces=former is not None):
            self._change(change)
        return text

    def _credentials(self, name: str, key: UserKey, nameservers: Sequence[str], former: Trust | None) -> str:
        pair = None if self._authority is None else self._authority.sign_user(name)
        if pair is None and former is not None:
            pair = former.pair
        found = nameservers or (self._authority and self._authority.nameservers()) or DEFAULT_NAMESERVER
        trust = Trust(read_text_file(self._folder / ROOTS), pair, key)
        return written(nameserver_addresses(found), trust, about_user(name))

    def _former(self, name: str, to: Path) -> Trust:
        former = CredentialsFile(Credentials(str(to))).trust()
        if former.bearer is None or former.bearer.id not in _user(self.read(), name).keys:
            raise InvalidArgument(  # it may be the only copy of another key
                f"cannot replace {to}: it does not have a valid key of user {name}; give another name, or remove the "
                "file if its key is not in use"
            )
        return former

    def _change(self, edit: Callable[[AccessDocument], AccessDocument]) -> AccessDocument:
        with lock_folder(self._folder):
            before = self.read()
            later = edit(before)
            text = to_toml(later).encode()
            from_toml(text)  # rejects what servers would reject
            self.rows = _changed(before, later)
            if not self._dry_run:
                put_files({self.path: text})
        return later


def _changed(before: AccessDocument, later: AccessDocument) -> list[PlanRow]:
    rows = []
    for name in sorted(before.users.keys() | later.users.keys()):
        old, new = (_parts(document.users.get(name)) for document in (before, later))
        rows += [PlanRow(f"{kind} of {name}", part) for kind, part in old if (kind, part) not in new]
        rows += [PlanRow(f"{kind} of {name}", None, part) for kind, part in new if (kind, part) not in old]
    return rows


def _parts(user: User | None) -> list[tuple[str, str]]:
    named = () if user is None else (("key", user.keys), ("role", user.roles), ("rule", user.rules))
    return [(kind, part) for kind, parts in named for part in parts]


def _checked(rules: Iterable[str]) -> tuple[str, ...]:
    parsed = [parse_rule(rule) for rule in rules]
    for rule in parsed:
        check_decides(rule)
    return _once(*map(str, parsed))


def _once(*texts: str) -> tuple[str, ...]:
    return tuple(dict.fromkeys(texts))


def _user(document: AccessDocument, name: str) -> User:
    found = document.users.get(name)
    if found is None:
        raise InvalidArgument(
            f"there is no user {name}: `minimq user list` lists all, `minimq user add {name}` adds one"
        )
    return found


def _with(document: AccessDocument, name: str, user: User) -> AccessDocument:
    return replace(document, users={**document.users, name: user})


def user_rows(document: AccessDocument) -> list[dict[str, Any]]:
    """Return a row for each user, with the ids of its keys."""
    policy, now_ms = Policy(document), time.time_ns() // 1_000_000
    rows = []
    for name, user in sorted(document.users.items()):
        rejection = policy.rejection(name, now_ms)
        keys = [
            {"id": key_id, "expires_at": moment(key.expires_ms) if key.expires_ms else None}
            for key_id, key in user.keys.items()
        ]
        state = "enabled" if rejection is None else rejection.value
        rows.append({"user": name, "state": state, "keys": keys, "roles": [*user.roles], "rules": [*user.rules]})
    return rows
