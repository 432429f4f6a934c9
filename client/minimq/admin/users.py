"""Operations that change users, their keys and their rights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace as replaced
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from msgspec.structs import replace

from minimq.admin import values
from minimq.admin.access import AccessChange, AccessEdit, AccessOperations, edited, said
from minimq.admin.operation import Arguments, Param, method, text_option
from minimq.admin.views import Plan, View
from minimq_common.errors import DeadlineExceeded, InvalidArgument
from minimq_common.security.access_document import AccessDocument, StoredKey, User, from_toml
from minimq_common.security.access_policy import Policy, check_decides, denied_by
from minimq_common.security.access_rule import parse_rule
from minimq_common.security.user_key import UserKey
from minimq_common.text_units import check_path, count_of

if TYPE_CHECKING:
    from minimq.admin.admin import Admin
    from minimq_common.security.certificates import Trust

#: Maximum number of keys of a user: the one in use, and its replacement.
_KEYS = 2
#: Maximum lifetime of a key in seconds, beyond any real clock.
_MAX_S = 1e13
OnLate = Callable[[DeadlineExceeded], None]
_UNKNOWN = "there is no user {0}: `minimq user list` lists all, `minimq user add {0}` adds one"

# ---- Options ----------------------------------------------------------------------------------------

#: The right that each option grants, and the help of the option.
GRANTS: Final = {
    "write": ("write topic", "Send to these topics: a name, or a prefix followed by *."),
    "read": ("read topic", "Read these topics."),
    "manage": ("manage topic", "Create, change and delete these topics."),
    "group": ("read group", "Consume as a member of these groups."),
    "transaction": ("write transaction", "Send under transactions of these names."),
}


def _rights(*, rights: Sequence[str], **patterns: Sequence[str]) -> tuple[str, ...]:
    return (*(f"{GRANTS[name][0]} {each}" for name, given in patterns.items() for each in given), *rights)


_ANY = "Any other right, 'VERB RESOURCE [PATTERN]', such as 'manage group billing*' or 'backup cluster'."
_RIGHT_OPTIONS = (
    *(text_option(name, "PATTERN", text) for name, (_, text) in GRANTS.items()),
    text_option("rights", "RIGHT", _ANY, "--right"),
)
_RIGHTS = Param(options=_RIGHT_OPTIONS, made=_rights)
_RULES = Param(options=_RIGHT_OPTIONS, made=lambda **given: tuple(f"allow {right}" for right in _rights(**given)))


UserName = Annotated[str, Param(complete="users", metavar="USER", help="Name of the user.")]
_ROLE = "A role of the document, or admin, which may do everything."
Roles = Annotated[Iterable[str], Param(flag="--role", metavar="ROLE", help=_ROLE)]
_LIFETIME = "Lifetime of the key, such as 90d; unlimited by default."
Lifetime = Annotated[float | None, Param(flag="--lifetime", read=values.seconds, metavar="TIME", help=_LIFETIME)]
Target = Annotated[str | Path | None, Param(flag="--to", metavar="FILE", is_local=True)]
Late = Annotated[OnLate | None, Param(is_collected=True)]


# ---- Plans and results ------------------------------------------------------------------------------


def _view_credentials(_admin: Admin, given: Arguments, text: str, _plan: Plan | None) -> View:
    own = [f"{given.to}: the credentials of user {given.name}; keep the file private"]
    return View(
        json={"user": given.name, **({"file": given.to} if given.to else {"credentials": text})},
        lines=own if given.to else [text.removesuffix("\n")],
        notes=[late.message for late in given.collected],
        is_complete=not given.collected,
    )


def _view_rules(_admin: Admin, given: Arguments, later: AccessDocument, _plan: Plan | None) -> View:
    name, user = given.name, later.users[given.name]
    granted = [] if given.delete else [f"{given.effect} {right}" for right in given.rights]
    granted += [] if given.delete else [rule for role in given.roles for rule in later.roles.get(role, ())]
    overridden = Policy(later).overridden(name, map(parse_rule, granted))
    left = "; ".join((*(f"role {role}" for role in user.roles), *user.rules)) or "no rules"
    return View(
        json={"user": name, "roles": list(user.roles), "rules": list(user.rules), "version": later.version},
        lines=[f"user {name}: {left}"],
        notes=[
            f"warning: '{rule}' changes nothing: {denied_by(name, denial, source)}"
            for rule, denial, source in overridden
        ],
    )


def _view_applied(_admin: Admin, _given: Arguments, later: AccessDocument, _plan: Plan | None) -> View:
    users = count_of(len(later.users), "user")
    return View(
        json={"version": later.version, "users": len(later.users)},
        lines=[f"version {later.version} with {users} is in force"],
    )


# ---- Operations -------------------------------------------------------------------------------------


class UserOperations(AccessOperations):
    """Changes users and rules; a part of `Admin`. Each change returns the whole document after it."""

    @AccessChange("user add", example="user add alice --write 'orders*' --to alice.minimq", view=_view_credentials)
    def add_user(
        self,
        name: str,
        rules: Annotated[Iterable[str], _RULES] = (),
        roles: Roles = (),
        *,
        lifetime_s: Lifetime = None,
        to: Target = None,
        on_late: Late = None,
    ) -> str:
        """Add a user, and write its credentials. Anyone who has them can act as the user.

        The credentials go to stdout or to a file, and are stored nowhere else. A consumer needs --read for its topics
        and --group for its group. A pattern may contain ${user}, the name of the user.

        Args:
            name: letters, digits, '.', '_' and '-'.
            rules: such as "allow read topic orders*".
            roles: roles of the document, or "admin", which may do everything.
            lifetime_s: lifetime of the key in seconds; unlimited by default.
            to: write the credentials to a FILE that only you can read, instead of to stdout.
            on_late: called with the error if the change is not yet in force everywhere; by default it is raised.
        """
        added = _added(rules)

        def edit(document: AccessDocument, key: tuple[str, StoredKey]) -> AccessDocument:
            if name in document.users:
                raise InvalidArgument(
                    f"user {name} exists already: `minimq user allow {name}` gives more rights, "
                    f"`minimq user rotate {name}` another key"
                )
            return _with(document, name, User(dict([key]), tuple(roles), added))

        return self._issue(name, edit, lifetime_s, to, on_late)

    @method
    def add_rules(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> AccessDocument:
        """Add rules and roles to a user; an equal deny is removed by an allow. Raises as `change_access`."""
        added = _added(rules)
        undone = {f"deny {rule.removeprefix('allow ')}" for rule in added if rule.startswith("allow ")}

        def add(user: User) -> User:
            # A deny keeps the allow that it overrules: that applies again once the deny is removed.
            kept = [rule for rule in user.rules if rule not in undone]
            every = tuple(dict.fromkeys((*user.roles, *roles)))
            return replace(user, rules=tuple(dict.fromkeys((*kept, *added))), roles=every)

        return self._change_user(name, add)

    @method
    def delete_rules(self, name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> AccessDocument:
        """Delete rules and roles of a user, who must have all of them. Raises as `change_access`."""
        gone, left = _normal(rules), set(roles)

        def remove(user: User) -> User:
            for lacking in (*(rule for rule in gone if rule not in user.rules), *sorted(left - set(user.roles))):
                raise InvalidArgument(
                    f"user {name} does not have {lacking!r}: `minimq user list` shows the roles and rules"
                )
            return replace(
                user,
                rules=tuple(rule for rule in user.rules if rule not in gone),
                roles=tuple(role for role in user.roles if role not in left),
            )

        return self._change_user(name, remove)

    @AccessChange(
        "user allow",
        example="user allow alice --read 'orders*' --group billing",
        view=_view_rules,
        fixed={"effect": "allow"},
        text="Grant a user more rights.\n\nA rule that denies exactly the same is removed. A rule that denies more "
        "stays and takes precedence, with a warning.",
    )
    @AccessChange(
        "user deny",
        example="user deny alice --write orders-archive",
        view=_view_rules,
        fixed={"effect": "deny", "roles": ()},
        text="Deny a user something, whatever other rules and roles allow.\n\nA rule that allows exactly the same "
        "stays, and holds again after --delete. Without any rule a user may do nothing: to revoke a right, `allow "
        "--delete` is enough.",
    )
    def change_rights(
        self,
        name: UserName,
        rights: Annotated[Iterable[str], _RIGHTS] = (),
        roles: Roles = (),
        *,
        effect: str = "allow",
        delete: bool = False,
    ) -> AccessDocument:
        """Add or delete rules that allow or deny rights. Raises as `change_access`.

        Args:
            name: of the user.
            rights: such as "read topic orders*".
            roles: roles of the document, or "admin", which may do everything.
            effect: "allow" or "deny".
            delete: delete these rules instead of adding them.
        """
        rules = [f"{effect} {right}" for right in rights]
        if not rules and not roles:
            raise InvalidArgument("nothing to change: give --write, --read, --group or another right")
        return (self.delete_rules if delete else self.add_rules)(name, rules, roles)

    @AccessChange(
        "user rotate",
        example="user rotate alice --to alice.minimq",
        view=_view_credentials,
        asks="Revoke the former keys of user {name}?",
        loses=lambda given: given.delete_old,
    )
    def rotate_user(
        self,
        name: UserName,
        *,
        delete_old: bool = False,
        lifetime_s: Lifetime = None,
        to: Target = None,
        on_late: Late = None,
    ) -> str:
        """Make a new key for a user, and write the credentials with it.

        The credentials go to stdout or to a file. The former key stays valid until `minimq user delete-old-keys`
        revokes it. FILE may be the file in use: it is replaced in one step, and clients use it for new connections.

        Args:
            name: of the user.
            delete_old: revoke all former keys at once, for example after a leak.
            lifetime_s: lifetime of the key in seconds; unlimited by default.
            to: write the credentials to a FILE that only you can read, instead of to stdout.
            on_late: see `add_user`.
        """

        def edit(document: AccessDocument, key: tuple[str, StoredKey]) -> AccessDocument:
            user = _user(document, name)
            if not delete_old and len(user.keys) >= _KEYS:
                raise InvalidArgument(
                    f"user {name} has {len(user.keys)} keys already: once nobody uses the former ones, "
                    f"`minimq user delete-old-keys {name}` ends them"
                )
            former = {} if delete_old else user.keys
            return _with(document, name, replace(user, keys=dict([*former.items(), key])))

        return self._issue(name, edit, lifetime_s, to, on_late, replaces=True)

    @AccessChange(
        "user delete-old-keys",
        example="user delete-old-keys alice",
        view=said("former keys of user {} revoked"),
        asks="Revoke the former keys of user {name}?",
    )
    def delete_old_keys(self, name: UserName) -> AccessDocument:
        """Revoke all keys of a user except the latest. Raises as `change_access`."""

        def drop(user: User) -> User:
            if len(user.keys) < _KEYS:
                raise InvalidArgument(
                    f"user {name} has no former key: `minimq user rotate {name}` makes a new one first"
                )
            latest = max(user.keys, key=lambda key_id: (user.keys[key_id].created_ms, key_id))
            return replace(user, keys={latest: user.keys[latest]})

        return self._change_user(name, drop)

    @AccessChange("user disable", example="user disable alice", view=said("user {} is disabled"))
    def disable_user(self, name: UserName) -> AccessDocument:
        """Lock a user out. Its keys and rules are kept for `minimq user enable`. Raises as `change_access`."""
        return self._change_user(name, lambda user: replace(user, disabled=True))

    @AccessChange("user enable", example="user enable alice", view=said("user {} is enabled"))
    def enable_user(self, name: UserName) -> AccessDocument:
        """Admit a disabled user again. Raises as `change_access`."""
        return self._change_user(name, lambda user: replace(user, disabled=False))

    @AccessChange(
        "user delete",
        example="user delete alice",
        view=said("user {} deleted"),
        asks="Delete user {name} with its keys and rules?",
    )
    def delete_user(self, name: UserName) -> AccessDocument:
        """Delete a user with its keys and rules. Raises as `change_access`."""

        def edit(document: AccessDocument) -> AccessDocument:
            if name not in document.users:
                raise InvalidArgument(_UNKNOWN.format(name))
            return replace(document, users={other: user for other, user in document.users.items() if other != name})

        return self.change_access(edit)

    @AccessChange(
        "access apply", example="access apply access.toml", view=_view_applied, asks="Replace all users and rules?"
    )
    def apply_access(self, document: Annotated[str, Param(metavar="FILE", is_file=True)]) -> AccessDocument:
        """Replace the document by that in FILE.

        Args:
            document: the new one, in TOML.
        """
        later = from_toml(document.encode())
        return self.change_access(lambda _former: later)

    def _change_user(self, name: str, change: Callable[[User], User]) -> AccessDocument:
        return self.change_access(lambda document: _with(document, name, change(_user(document, name))))

    def _issue(
        self,
        name: UserName,
        edit: Callable[[AccessDocument, tuple[str, StoredKey]], AccessDocument],
        lifetime_s: float | None,
        to: str | Path | None,
        on_late: OnLate | None,
        *,
        replaces: bool = False,
    ) -> str:
        """Change the document, and return the credentials, the only copy of the new key."""
        from minimq.local.certificate_authority import issue_key

        if lifetime_s is not None and not 0 < lifetime_s <= _MAX_S:
            raise InvalidArgument(f"lifetime_s is {lifetime_s:g}: it must be above 0, or be left out")
        key, stored = issue_key(lifetime_s)
        # Before the file exists: it may be in the folder of secrets, where every file is read.
        text, late = self.credentials_of(name, key), None
        check_path("to", to or "")
        path = None if to is None else Path(to)
        with self._file_ready(path, name, text, replaces=replaces and path is not None and path.exists()):
            try:
                self.change_access(lambda document: edit(document, (key.id, stored)))
            except DeadlineExceeded as error:  # the change was made, but is not in force everywhere yet
                late = error
        if late is not None and on_late is None:
            raise late
        if late is not None and on_late is not None:
            on_late(late)
        return text

    def _file_ready(self, path: Path | None, name: str, text: str, *, replaces: bool) -> AbstractContextManager[None]:
        from minimq.local.secret_files import new_file_ready

        if path is not None and replaces:
            text = _replacing(_former(path, name, self.access()), name, text)
        return new_file_ready(path, text, replaces=replaces)


class Rehearsal(UserOperations):
    """Applies a change to a private copy of the document, for its plan."""

    def __init__(self, document: AccessDocument) -> None:
        self._document = document

    @method
    def access(self) -> AccessDocument:
        return self._document

    @method
    def change_access(self, edit: AccessEdit, *, wait: bool = True) -> AccessDocument:
        self._document = edited(self._document, edit)
        return self._document

    @method
    def credentials_of(self, name: str, key: UserKey, nameservers: Sequence[str] = ()) -> str:
        """Return an empty text: the key of a rehearsal is discarded."""
        return ""

    @contextmanager
    def _file_ready(self, path: Path | None, name: str, text: str, *, replaces: bool) -> Iterator[None]:
        from minimq.local.secret_files import check_file

        document = self._document
        yield  # errors of the change take precedence over those of the file
        if path is not None and replaces:
            _former(path, name, document)
        if path is not None:
            check_file(path, replaces=replaces)


def _user(document: AccessDocument, name: str) -> User:
    found = document.users.get(name)
    if found is not None:
        return found
    raise InvalidArgument(_UNKNOWN.format(name))


def _with(document: AccessDocument, name: str, user: User) -> AccessDocument:
    return replace(document, users={**document.users, name: user})


def _normal(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(parse_rule(rule)) for rule in rules))


def _added(rules: Iterable[str]) -> tuple[str, ...]:
    found = _normal(rules)
    for rule in found:
        check_decides(parse_rule(rule))
    return found


def _former(to: Path, name: str, document: AccessDocument) -> Trust:
    """Return the credentials in a file that is to be replaced.

    Raises `InvalidArgument` unless it has a key of that user: it may be the only copy of another key.
    """
    from minimq_common.security.credentials import Credentials
    from minimq_common.security.credentials_file import CredentialsFile

    former = CredentialsFile(Credentials(str(to))).trust()
    user = document.users.get(name)
    if user is None or former.bearer is None or former.bearer.id not in user.keys:
        raise InvalidArgument(
            f"cannot replace {to}: it does not hold a valid key of user {name}; give another name, or remove the file "
            "if nobody uses the key in it"
        )
    return former


def _replacing(former: Trust, name: str, text: str) -> str:
    """Return the new credentials with the client certificate of the former ones."""
    from minimq_common.security.credentials import Credentials
    from minimq_common.security.credentials_file import CredentialsFile, about_user, written

    later = CredentialsFile(Credentials.from_text(text))
    if former.pair is None or later.trust().pair is not None:
        return text
    return written(later.nameservers, replaced(later.trust(), pair=former.pair), about_user(name))
