"""The decision who may do what, the rule behind it, and the text of a refusal.

Pure: time is an argument.
"""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum

from msgspec import UNSET
from msgspec.structs import replace

from minimq_common.errors import InvalidArgument
from minimq_common.names import ONE_TIME_TRANSACTIONS
from minimq_common.security.access_document import ADMIN, NO_LIMITS, AccessDocument, User, UserLimits
from minimq_common.security.access_rule import USER, Need, Resource, Rule, Verb, parse_rule
from minimq_common.security.issuer import VerifiedToken, issuer_of

#: Topics of a group, by the begin of their names; the rights to them are those to the group.
_GROUP_TOPIC_PREFIXES = ("%RETRY%", "%DLQ%")

_ADMIN_SOURCE = "role admin"
#: Options of `minimq user allow` and `minimq user deny`, by what they are about.
_OPTIONS = {
    (Verb.WRITE, Resource.TOPIC): "--write",
    (Verb.READ, Resource.TOPIC): "--read",
    (Verb.MANAGE, Resource.TOPIC): "--manage",
    (Verb.READ, Resource.GROUP): "--group",
    (Verb.WRITE, Resource.TRANSACTION): "--transaction",
}
#: Begin of the source of a rule that stands in a role.
_ROLE = "role "

#: Users whose rules are prepared for decisions.
_MOST_INDEXES = 8_192


class Refusal(Enum):
    """The reason why a caller is let in nowhere."""

    UNKNOWN = "unknown"
    EXPIRED = "expired"
    DISABLED = "disabled"


@dataclass(frozen=True, slots=True)
class Principal:
    """A user that has shown a key or a token."""

    user: str
    #: Of the key; empty for who has shown a certificate or a token.
    key_id: str = ""
    #: Milliseconds since 1970 after which the key or the token is good no more; 0 for never.
    expires_ms: int = 0
    roles: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AccessDecision:
    """A decision about a need; for topics of a group that is the right to the group."""

    allowed: bool
    need: Need
    #: The rule that decided, and where it stands, "user alice" or "role readers".
    rule: Rule | None = None
    source: str = ""
    #: Why the user is let in nowhere, whatever the rules.
    obstacle: str = ""
    #: Of the document, for who asks whether a user may do something.
    version: int = 0

    @property
    def reason(self) -> str:
        """The rule that decided, as people read it."""
        if self.obstacle:
            return self.obstacle
        if self.rule is not None:
            return f"{self.rule} ({self.source})"
        return f"{self.source} may do everything" if self.source else f"no rule allows to {self.need}"


class Policy:
    """The decisions of one document. It never changes: another document makes another policy."""

    def __init__(self, document: AccessDocument) -> None:
        self.document = document
        self._roles = {name: tuple(map(parse_rule, rules)) for name, rules in document.roles.items()}
        self._own = {name: tuple(map(parse_rule, user.rules)) for name, user in document.users.items()}
        self._indexes: dict[tuple[str, tuple[str, ...]], _RuleIndex] = {}
        self._by_hash = {
            key.hash: Principal(name, key_id, key.expires_ms)
            for name, user in document.users.items()
            for key_id, key in user.keys.items()
        }

    def of_key(self, key_hash: str, now_ms: int) -> Principal | Refusal:
        """Return whose key it is, by its hash."""
        principal = self._by_hash.get(key_hash)
        return Refusal.UNKNOWN if principal is None else self.check(principal, now_ms)

    def user_of(self, key_hash: str) -> str:
        """Return whose key it is or was, whether it is in force or not; empty when nobody has it."""
        principal = self._by_hash.get(key_hash)
        return "" if principal is None else principal.user

    def of_token(self, token: VerifiedToken, now_ms: int) -> Principal | Refusal:
        """Return whose token it is, which was verified by this policy or a former one."""
        issuer = self.document.known_issuers.get(token.issuer_name)
        if issuer is None or not issuer.reads_as(token.issuer):
            return Refusal.UNKNOWN
        if token.expires_ms <= now_ms:
            return Refusal.EXPIRED
        user = self.document.users.get(token.user)
        if user is not None and user.disabled:
            return Refusal.DISABLED
        return Principal(token.user, "", token.expires_ms, issuer.granted(token.claimed))

    def check(self, principal: Principal, now_ms: int) -> Principal | Refusal:
        """Return a principal of a former policy as it is by this one, or why it is let in no more."""
        user = self.document.users.get(principal.user)
        if user is None:
            return Refusal.UNKNOWN
        if user.disabled:
            return Refusal.DISABLED
        if not principal.key_id:
            return principal
        key = user.keys.get(principal.key_id)
        if key is None:
            return Refusal.UNKNOWN
        if key.is_over(now_ms):
            return Refusal.EXPIRED
        return Principal(principal.user, principal.key_id, key.expires_ms)

    def decide(self, user: str, need: Need, roles: tuple[str, ...] = ()) -> AccessDecision:
        """Decide whether a user may do something. A rule that denies wins; without any rule nobody may.

        The topics in which a group keeps its retries and dead letters, and the transactions by which these are resent,
        are of the group: who may read it may use them.
        """
        need = of_group(need)
        found = self._find(user, roles)
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
        """Decide as `decide`, for who asks whether a user may do something: nobody may who is let in nowhere."""
        refusal = self.refusal(user, now_ms)
        if refusal is None:
            return dataclasses.replace(self.decide(user, need), version=self.document.version)
        obstacle = {
            Refusal.UNKNOWN: f"there is no user {user}",
            Refusal.DISABLED: f"user {user} is disabled",
            Refusal.EXPIRED: f"key expired: `minimq user rotate {user} --drop-old` makes a new one",
        }[refusal]
        return AccessDecision(False, of_group(need), obstacle=obstacle, version=self.document.version)

    def refusal(self, user: str, now_ms: int) -> Refusal | None:
        """Return why no key of a user is let in; None if one is, or if the user has none at all."""
        found = self._find(user)
        if found is None:
            return Refusal.UNKNOWN
        if found.disabled:
            return Refusal.DISABLED
        if found.keys and all(key.is_over(now_ms) for key in found.keys.values()):
            return Refusal.EXPIRED
        return None

    def overridden(self, user: str, rules: Iterable[Rule]) -> Iterator[tuple[Rule, Rule, str]]:
        """Yield each of some rules that allow nothing, as another rule of the user denies all of it, and its source."""
        found = self._find(user)
        denying = [each for each in self._rules(user, found) if not each[0].allows] if found is not None else []
        for rule in rules:
            for denial, source in denying:
                if rule.allows and denial.covers(rule, user):
                    yield rule, denial, source
                    break

    def rights_of(self, user: str, roles: tuple[str, ...] = ()) -> object:
        """Return what is equal as long as no decision about a user is another one."""
        found = self._find(user, roles)
        if found is None or found.disabled:
            return None
        return tuple(self._rules(user, found)), ADMIN in found.roles

    def limits_of(self, user: str) -> UserLimits:
        """Return what a user may move at most."""
        found = self.document.users.get(user)
        return NO_LIMITS if found is None or found.limits is UNSET else found.limits

    def sees_all(self, user: str, roles: tuple[str, ...] = ()) -> bool:
        """Return whether there is nothing that a user may not describe."""
        found = self._find(user, roles)
        if found is None or found.disabled or ADMIN not in found.roles:
            return False
        return not any(rule.verb is Verb.DESCRIBE and not rule.allows for rule, _ in self._rules(user, found))

    def _find(self, name: str, roles: tuple[str, ...] = ()) -> User | None:
        found = self.document.users.get(name)
        issuer = self.document.known_issuers.get(issuer_of(name))
        if issuer is None:
            return found
        found = found or User()
        return replace(found, roles=tuple(dict.fromkeys((*found.roles, *issuer.granted(), *roles))))

    def _index_of(self, name: str, user: User) -> _RuleIndex:
        index = self._indexes.get((name, user.roles))
        if index is None:
            if len(self._indexes) >= _MOST_INDEXES:  # of users of issuers there is any number
                self._indexes.clear()
            index = self._indexes[name, user.roles] = _RuleIndex(self._rules(name, user), name)
        return index

    def _rules(self, name: str, user: User) -> Iterator[tuple[Rule, str]]:
        for rule in self._own.get(name, ()):
            yield rule, f"user {name}"
        for role in user.roles:
            for rule in self._roles.get(role, ()):
                yield rule, f"role {role}"


class _RuleIndex:
    """The rules of one user by the names that they are about: a decision looks at few, however many there are."""

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
        """Yield the rules that may fit a need, in their order."""
        found = [*self._by_name.get((need.resource, need.name, False), ())]
        for length in self._begins.get(need.resource, ()):
            if length > len(need.name):
                break
            found += self._by_name.get((need.resource, need.name[:length], True), ())
        found.sort(key=lambda each: each[0])
        return ((rule, source) for _, rule, source in found)


def check_decides(rule: Rule) -> None:
    """Raise `InvalidArgument` for a rule about what a group keeps, which the rules about the group decide."""
    need = of_group(Need(rule.verb, rule.resource, rule.pattern))
    if need.resource is not rule.resource:
        effect = "allow" if rule.allows else "deny"
        raise InvalidArgument(
            f"the rule {str(rule)!r} decides nothing: {rule.pattern} follows the rules about its group; write "
            f"'{effect} {need}'"
        )


def of_group(need: Need) -> Need:
    """Return a need as rules are about it."""
    for begin in _GROUP_TOPIC_PREFIXES if need.resource is Resource.TOPIC else ():
        if need.name.startswith(begin):
            verb = Verb.READ if need.verb is Verb.WRITE else need.verb
            return Need(verb, Resource.GROUP, need.name.removeprefix(begin))
    return need


def refused(user: str, decision: AccessDecision) -> str:
    """Return the text for a caller that a decision refuses.

    A rule that denies is named: its pattern is a name that the caller has asked for, or the begin of it.
    """
    need = of_group(decision.need)
    name = shlex.quote(user)  # that of a user of an issuer may have a letter of the shell
    what = "may not see or change users and rules" if need.verb is Verb.ACCESS else f"may not {need}"
    if not user:
        return f"a caller without a key {what}: give the credentials of an administrator"
    if user.startswith("%"):
        return f"a server {what}"
    if decision.rule is not None:
        return f"user {user} {what}, whatever else is allowed: {denied_by(user, decision.rule, decision.source)}"
    if need.verb is Verb.ACCESS:  # whoever has this right can have all others
        return f"user {user} {what}: only administrators may, and `minimq user allow {name} {_rights(need)}` makes one"
    grant = f"an administrator can grant it with `minimq user allow {name} "
    if (need.verb, need.resource) == (Verb.DESCRIBE, Resource.TOPIC):  # the first step of every use of a topic
        write, read = (_right(verb, need.resource, need.name) for verb in (Verb.WRITE, Verb.READ))
        return f"user {user} has no right to topic {need.name}: {grant}{write}`, for sending, or `{read}`, for reading"
    return f"user {user} {what}: {grant}{_rights(need)}`"


def denied_by(user: str, rule: Rule, source: str) -> str:
    """Return which rule denies something, and how it is removed."""
    name = shlex.quote(user)
    if source.startswith(_ROLE):
        role = source.removeprefix(_ROLE)
        remedy = (
            f"an administrator can take that role away with `minimq user allow {name} --role {role} --remove`, or "
            "change it with `minimq access apply`"
        )
    else:
        right = _right(rule.verb, rule.resource, rule.pattern)
        remedy = f"an administrator can remove that rule with `minimq user deny {name} {right} --remove`"
    return f"the rule '{rule}' of {source} denies it; {remedy}"


def _rights(need: Need) -> str:
    if need.resource is Resource.TRANSACTION and need.name.startswith(ONE_TIME_TRANSACTIONS):
        return _right(need.verb, need.resource, f"{ONE_TIME_TRANSACTIONS}*")  # this very name comes never again
    return _right(need.verb, need.resource, need.name)


def _right(verb: Verb, resource: Resource, pattern: str) -> str:
    option = _OPTIONS.get((verb, resource))
    if option is not None:
        return f"{option} {shlex.quote(pattern)}"
    return f"--right '{verb.value} {resource.value} {pattern}".rstrip() + "'"
