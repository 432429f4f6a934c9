"""Decides who may do what, with the rule behind a decision and the text of a rejection."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from minimq_common.errors import InvalidArgument
from minimq_common.names import ONE_TIME_TRANSACTIONS
from minimq_common.security.access_document import ADMIN, AccessDocument, User
from minimq_common.security.access_rule import USER, Need, Resource, Rule, Verb, parse_rule

#: Prefixes of the topics of a group; rights to these topics are rights to the group.
_GROUP_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")

_ADMIN_SOURCE = "role admin"
#: Options of `minimq user allow`.
_OPTIONS = {
    (Verb.WRITE, Resource.TOPIC): "--write",
    (Verb.READ, Resource.TOPIC): "--read",
    (Verb.READ, Resource.GROUP): "--group",
    (Verb.WRITE, Resource.TRANSACTION): "--transaction",
}


class Rejection(Enum):
    """The reason why a caller is rejected, independent of its rights."""

    UNKNOWN = "unknown"
    EXPIRED = "expired"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user, authenticated by a key."""

    user: str
    #: Milliseconds since 1970 at which the key expires; 0 for never.
    expires_ms: int = 0


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """A decision about a right; for topics of a group, `need` is the right to the group."""

    allowed: bool
    need: Need
    #: The rule that decided, and its source: "user alice" or "role readers".
    rule: Rule | None = None
    source: str = ""
    #: Why the user is rejected regardless of rules; empty if it is not.
    obstacle: str = ""

    @property
    def reason(self) -> str:
        """The reason for the decision, as text for users."""
        if self.obstacle:
            return self.obstacle
        if self.rule is not None:
            return f"{self.rule} ({self.source})"
        return f"{self.source} may do everything" if self.source else f"no rule allows to {self.need}"


class Rights(NamedTuple):
    allowing: frozenset[Rule]
    denying: frozenset[Rule]
    is_admin: bool

    def exceed(self, later: Rights) -> bool:
        """Return whether these rights may allow something that `later` does not."""
        keeps_all = self.allowing <= later.allowing and later.denying <= self.denying
        return not keeps_all or self.is_admin > later.is_admin


class Policy:
    """The decisions that follow from one document. Immutable."""

    def __init__(self, document: AccessDocument) -> None:
        self.document = document
        self._roles = {name: tuple(map(parse_rule, rules)) for name, rules in document.roles.items()}
        self._own = {name: tuple(map(parse_rule, user.rules)) for name, user in document.users.items()}
        self._indexes: dict[str, _RuleIndex] = {}
        self._by_hash = {
            key.hash: Principal(name, key.expires_ms)
            for name, user in document.users.items()
            for key in user.keys.values()
        }

    def of_key(self, key_hash: str, now_ms: int) -> Principal | Rejection:
        """Return the user of a key, or why the key is rejected."""
        principal = self._by_hash.get(key_hash)
        if principal is None:
            return Rejection.UNKNOWN
        if self.document.users[principal.user].disabled:
            return Rejection.DISABLED
        if 0 < principal.expires_ms <= now_ms:
            return Rejection.EXPIRED
        return principal

    def user_of(self, key_hash: str) -> str:
        """Return the name of the user of a key, even if the key has expired; empty if no user has it."""
        principal = self._by_hash.get(key_hash)
        return "" if principal is None else principal.user

    def decide(self, user: str, need: Need) -> AccessDecision:
        """Decide whether a user may do something. A rule that denies wins; without any rule it is denied."""
        need = of_group(need)
        found = self.document.users.get(user)
        if found is None or found.disabled:
            return AccessDecision(False, need)
        fitting = [each for each in self._index_of(user, found).about(need) if each[0].fits(need, user)]
        for rule, source in fitting:
            if not rule.allows:
                return AccessDecision(False, need, rule, source)
        if fitting:
            return AccessDecision(True, need, *fitting[0])
        if ADMIN in found.roles:
            return AccessDecision(True, need, None, _ADMIN_SOURCE)
        return AccessDecision(False, need)

    def answer(self, user: str, need: Need, now_ms: int) -> AccessDecision:
        """Same as `decide`, for the question whether a user may do something: also considers `rejection`."""
        rejection = self.rejection(user, now_ms)
        if rejection is None:
            return self.decide(user, need)
        obstacle = {
            Rejection.UNKNOWN: f"there is no user {user}",
            Rejection.DISABLED: f"user {user} is disabled",
            Rejection.EXPIRED: f"key expired: `minimq user rotate {user} --delete-old` makes a new one",
        }[rejection]
        return AccessDecision(False, of_group(need), obstacle=obstacle)

    def rejection(self, user: str, now_ms: int) -> Rejection | None:
        """Return why all keys of a user are rejected; None if one is valid, or if the user has no keys."""
        found = self.document.users.get(user)
        if found is None:
            return Rejection.UNKNOWN
        if found.disabled:
            return Rejection.DISABLED
        if found.keys and all(key.is_over(now_ms) for key in found.keys.values()):
            return Rejection.EXPIRED
        return None

    def rights_of(self, user: str) -> Rights:
        found = self.document.users.get(user, User())
        rules = [rule for rule, _ in self._rules(user, found)]
        return Rights(
            frozenset(rule for rule in rules if rule.allows),
            frozenset(rule for rule in rules if not rule.allows),
            ADMIN in found.roles,
        )

    def sees_all(self, user: str) -> bool:
        """Return whether a user may describe everything, so that lists need no filtering."""
        found = self.document.users.get(user)
        if found is None or found.disabled or ADMIN not in found.roles:
            return False
        return not any(rule.verb is Verb.DESCRIBE and not rule.allows for rule, _ in self._rules(user, found))

    def _index_of(self, name: str, user: User) -> _RuleIndex:
        index = self._indexes.get(name)
        if index is None:
            index = self._indexes[name] = _RuleIndex(self._rules(name, user), name)
        return index

    def _rules(self, name: str, user: User) -> Iterator[tuple[Rule, str]]:
        for rule in self._own.get(name, ()):
            yield rule, f"user {name}"
        for role in user.roles:
            for rule in self._roles.get(role, ()):
                yield rule, f"role {role}"


class _RuleIndex:
    """Indexes the rules of one user by name and prefix, so a decision checks only a few of them."""

    def __init__(self, rules: Iterable[tuple[Rule, str]], user: str) -> None:
        self._by_name: dict[tuple[Resource, str, bool], list[tuple[int, Rule, str]]] = {}
        begins: dict[Resource, set[int]] = {}
        for number, (rule, source) in enumerate(rules):
            pattern = rule.pattern.replace(USER, user)
            name, is_begin = pattern.removesuffix("*"), pattern.endswith("*")
            self._by_name.setdefault((rule.resource, name, is_begin), []).append((number, rule, source))
            if is_begin:
                begins.setdefault(rule.resource, set()).add(len(name))
        self._begins = {resource: tuple(sorted(lengths)) for resource, lengths in begins.items()}

    def about(self, need: Need) -> Iterator[tuple[Rule, str]]:
        """Yield the rules that may match a need, in their order."""
        found = [*self._by_name.get((need.resource, need.name, False), ())]
        for length in self._begins.get(need.resource, ()):
            if length > len(need.name):
                break
            found += self._by_name.get((need.resource, need.name[:length], True), ())
        found.sort(key=lambda each: each[0])
        return ((rule, source) for _, rule, source in found)


def check_decides(rule: Rule) -> None:
    """Raise `InvalidArgument` for a rule about a topic of a group, since rules about the group decide."""
    need = of_group(Need(rule.verb, rule.resource, rule.pattern))
    if need.resource is not rule.resource:
        effect = "allow" if rule.allows else "deny"
        raise InvalidArgument(
            f"the rule {str(rule)!r} decides nothing: {rule.pattern} follows the rules about its group; write "
            f"'{effect} {need}'"
        )


def of_group(need: Need) -> Need:
    """Return the right that rules are about: for topics of a group, the right to the group."""
    for begin in _GROUP_TOPIC_PREFIXES if need.resource is Resource.TOPIC else ():
        if need.name.startswith(begin):
            verb = Verb.READ if need.verb is Verb.WRITE else need.verb
            return Need(verb, Resource.GROUP, need.name.removeprefix(begin))
    return need


def rejected(user: str, decision: AccessDecision) -> str:
    """Return the text for a caller that a decision rejects."""
    need = of_group(decision.need)
    if user.startswith("%"):
        return f"a server may not {need}"
    if decision.rule is not None:
        return (
            f"user {user} may not {need}, whatever else is allowed: the rule '{decision.rule}' of {decision.source} "
            "denies it; an administrator can remove it from access.toml"
        )
    grant = f"an administrator can grant it with `minimq user allow {user} "
    if (need.verb, need.resource) == (Verb.DESCRIBE, Resource.TOPIC):  # every use of a topic starts with this
        write, read = (_right(verb, need.resource, need.name) for verb in (Verb.WRITE, Verb.READ))
        return f"user {user} has no right to topic {need.name}: {grant}{write}`, for sending, or `{read}`, for reading"
    return f"user {user} may not {need}: {grant}{_rights(need)}`"


def _rights(need: Need) -> str:
    if need.resource is Resource.TRANSACTION and need.name.startswith(ONE_TIME_TRANSACTIONS):
        return _right(need.verb, need.resource, f"{ONE_TIME_TRANSACTIONS}*")  # a grant for this one name is useless
    return _right(need.verb, need.resource, need.name)


def _right(verb: Verb, resource: Resource, pattern: str) -> str:
    option = _OPTIONS.get((verb, resource))
    if option is not None:
        return f"{option} {shlex.quote(pattern)}"
    return f"--right '{verb.value} {resource.value} {pattern}".rstrip() + "'"
