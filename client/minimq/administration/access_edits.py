"""Changes of the document of users and rules. Each returns a new document, whose version `edited` sets.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from msgspec import UNSET
from msgspec.structs import replace

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import NO_LIMITS, AccessDocument, StoredKey, User, decode
from minimq_common.security.access_policy import Policy, check_decides
from minimq_common.security.access_rule import Need, Resource, Verb, parse_rule
from minimq_common.security.issuer import Issuer, is_token_user, issuer_of

#: Takes a document, and returns the changed one.
AccessEdit = Callable[[AccessDocument], AccessDocument]

#: A key as servers know it, by its id.
NamedKey = tuple[str, StoredKey]

#: Maximum number of keys of a user: the one in use, and its replacement.
_KEYS = 2

_ACCESS = Need(Verb.ACCESS, Resource.CLUSTER)


def edited(document: AccessDocument, edit: AccessEdit) -> AccessDocument:
    """Return a document after a change, under the next version."""
    changed = edit(document)
    later = replace(changed, version=max(changed.version, document.version + 1))
    later = decode(later.encoded())  # with the same checks as documents from elsewhere
    if administrators(document) and not administrators(later):
        raise InvalidArgument(
            "no user would be left with the right to change users and rules: give another user the role admin first "
            "(`minimq user allow NAME --role admin`)"
        )
    return later


def administrators(document: AccessDocument) -> list[str]:
    """Return the users that may change users and rules, and whose keys no issuer can take back."""
    policy = Policy(document)
    return [name for name in document.users if not issuer_of(name) and policy.decide(name, _ACCESS).allowed]


def add_user(name: str, key: NamedKey, rules: Iterable[str], roles: Iterable[str]) -> AccessEdit:
    """Return the change that adds a user with a key."""

    def edit(document: AccessDocument) -> AccessDocument:
        _check_has_keys(name)
        if name in document.users:
            raise InvalidArgument(
                f"user {name} exists already: `minimq user allow {name}` gives more rights, "
                f"`minimq user rotate {name}` another key"
            )
        return _with(document, name, User(dict([key]), tuple(roles), _added(rules)))

    return edit


def add_rules(name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> AccessEdit:
    """Return the change that adds rules and roles to a user.

    A rule that allows something removes one that denies the same, which it would not overrule. A rule that denies
    something leaves the one that it overrules, which holds again when it is removed.
    """

    def edit(document: AccessDocument) -> AccessDocument:
        user, added = _user(document, name), _added(rules)
        undone = {f"deny {rule.removeprefix('allow ')}" for rule in added if rule.startswith("allow ")}
        kept = [rule for rule in user.rules if rule not in undone]
        every, every_role = dict.fromkeys((*kept, *added)), dict.fromkeys((*user.roles, *roles))
        return _with(document, name, replace(user, rules=tuple(every), roles=tuple(every_role)))

    return edit


def remove_rules(name: str, rules: Iterable[str], roles: Iterable[str] = ()) -> AccessEdit:
    """Return the change that removes rules and roles, all of which the user must have."""

    def edit(document: AccessDocument) -> AccessDocument:
        user, gone, left = _user(document, name), _normal(rules), set(roles)
        for lacking in (*(rule for rule in gone if rule not in user.rules), *sorted(left - set(user.roles))):
            raise InvalidArgument(
                f"user {name} does not have {lacking!r}: `minimq user list` shows the roles and rules"
            )
        kept = tuple(rule for rule in user.rules if rule not in gone)
        return _with(
            document, name, replace(user, rules=kept, roles=tuple(role for role in user.roles if role not in left))
        )

    return edit


def set_limits(name: str, in_bytes_per_s: int | None, out_bytes_per_s: int | None) -> AccessEdit:
    """Return the change that sets limits of a user; 0 removes one, and None leaves it as it is."""

    def edit(document: AccessDocument) -> AccessDocument:
        user = _user(document, name)
        former = NO_LIMITS if user.limits is UNSET else user.limits
        given = {"in_bytes_per_s": in_bytes_per_s, "out_bytes_per_s": out_bytes_per_s}
        limits = replace(former, **{field: rate for field, rate in given.items() if rate is not None})
        return _with(document, name, replace(user, limits=UNSET if limits == NO_LIMITS else limits))

    return edit


def add_key(name: str, key: NamedKey, *, drop_old: bool = False) -> AccessEdit:
    """Return the change that gives a user a new key, beside the former one or, with `drop_old`, instead of it."""

    def edit(document: AccessDocument) -> AccessDocument:
        _check_has_keys(name)
        user = _user(document, name)
        if not drop_old and len(user.keys) >= _KEYS:
            raise InvalidArgument(
                f"user {name} has {len(user.keys)} keys already: once nobody uses the former ones, "
                f"`minimq user drop-old-keys {name}` ends them"
            )
        former = {} if drop_old else user.keys
        return _with(document, name, replace(user, keys=dict([*former.items(), key])))

    return edit


def drop_former_keys(name: str) -> AccessEdit:
    """Return the change that revokes all keys of a user except the latest."""

    def edit(document: AccessDocument) -> AccessDocument:
        _check_has_keys(name)
        user = _user(document, name)
        if len(user.keys) < _KEYS:
            raise InvalidArgument(f"user {name} has no former key: `minimq user rotate {name}` makes a new one first")
        latest = max(user.keys, key=lambda key_id: (user.keys[key_id].created_ms, key_id))
        return _with(document, name, replace(user, keys={latest: user.keys[latest]}))

    return edit


def set_disabled(name: str, *, disabled: bool) -> AccessEdit:
    """Return the change that disables or enables a user."""
    return lambda document: _with(document, name, replace(_user(document, name), disabled=disabled))


def remove_user(name: str) -> AccessEdit:
    """Return the change that removes a user."""

    def edit(document: AccessDocument) -> AccessDocument:
        if name not in document.users:
            raise InvalidArgument(_UNKNOWN.format(name))
        return replace(document, users={other: user for other, user in document.users.items() if other != name})

    return edit


def add_issuer(name: str, issuer: Issuer, *, replaces: bool = False) -> AccessEdit:
    """Return the change that adds an issuer of tokens, or replaces the one of that name; its users keep their rules."""

    def edit(document: AccessDocument) -> AccessDocument:
        former = document.known_issuers
        if replaces and name not in former:
            raise InvalidArgument(_NO_ISSUER.format(name))
        if not replaces and name in former:
            raise InvalidArgument(f"issuer {name} exists already: add it with --replace to change it")
        return replace(document, issuers={**former, name: issuer})

    return edit


def remove_issuer(name: str) -> AccessEdit:
    """Return the change that removes an issuer of tokens, with the rules of its users."""

    def edit(document: AccessDocument) -> AccessDocument:
        if name not in document.known_issuers:
            raise InvalidArgument(_NO_ISSUER.format(name))
        issuers = {other: issuer for other, issuer in document.known_issuers.items() if other != name}
        users = {other: user for other, user in document.users.items() if issuer_of(other) != name}
        return replace(document, users=users, issuers=issuers or UNSET)

    return edit


def replace_all(later: AccessDocument) -> AccessEdit:
    """Return the change that replaces the document by one with a larger version."""

    def edit(document: AccessDocument) -> AccessDocument:
        if later.version <= document.version:
            raise InvalidArgument(
                f"the document has version {later.version}, and the cluster has {document.version}: give it a larger "
                f"version, such as {document.version + 1}"
            )
        return later

    return edit


_UNKNOWN = "there is no user {0}: `minimq user list` lists all, `minimq user add {0}` adds one"
_NO_ISSUER = "there is no issuer {0}: `minimq access issuer list` lists all, `minimq access issuer add` adds one"


def _user(document: AccessDocument, name: str) -> User:
    found = document.users.get(name)
    if found is not None:
        return found
    if (issuer := issuer_of(name)) and is_token_user(name):
        if issuer in document.known_issuers:
            return User()  # whoever has a token with that name
        raise InvalidArgument(_NO_ISSUER.format(issuer))
    raise InvalidArgument(_UNKNOWN.format(name))


def _check_has_keys(name: str) -> None:
    if issuer := issuer_of(name):
        raise InvalidArgument(
            f"user {name} is one of issuer {issuer}, which makes tokens for it: it has no key, and need not be added"
        )


def _with(document: AccessDocument, name: str, user: User) -> AccessDocument:
    return replace(document, users={**document.users, name: user})


def _normal(rules: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(str(parse_rule(rule)) for rule in rules))


def _added(rules: Iterable[str]) -> tuple[str, ...]:
    found = _normal(rules)
    for rule in found:
        check_decides(parse_rule(rule))
    return found
