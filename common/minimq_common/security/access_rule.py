"""Rules of access: "allow read topic orders*".

Pure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from minimq_common.errors import InvalidArgument


class Resource(Enum):
    """A kind of thing that rules are about."""

    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"
    CLUSTER = "cluster"


class Verb(Enum):
    """A kind of use. Whoever may do any other one may describe."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    DESCRIBE = "describe"
    BACKUP = "backup"
    ACCESS = "access"


#: The verbs of each resource.
VERBS: dict[Resource, tuple[Verb, ...]] = {
    Resource.TOPIC: (Verb.WRITE, Verb.READ, Verb.MANAGE, Verb.DESCRIBE),
    Resource.GROUP: (Verb.READ, Verb.MANAGE, Verb.DESCRIBE),
    Resource.TRANSACTION: (Verb.WRITE, Verb.DESCRIBE),
    Resource.CLUSTER: (Verb.DESCRIBE, Verb.MANAGE, Verb.BACKUP, Verb.ACCESS),
}

#: Stands for the name of the user in a pattern.
USER = "${user}"

_PATTERN = re.compile(r"[A-Za-z0-9_.%|-]*\*?")
_MOST_LETTERS = 255


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request takes.

    Attributes:
        verb: what is done.
        resource: to which kind of thing.
        name: of the thing; empty for the cluster, of which there is one.
    """

    verb: Verb
    resource: Resource
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb.value} {self.resource.value} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule, for whoever it is listed under.

    Attributes:
        allows: whether it allows or denies.
        verb: what is done.
        resource: to which kind of thing.
        pattern: a name, or the begin of names before a `*`; empty for the cluster.
    """

    allows: bool
    verb: Verb
    resource: Resource
    pattern: str = ""

    def __str__(self) -> str:
        effect = "allow" if self.allows else "deny"
        return f"{effect} {self.verb.value} {self.resource.value} {self.pattern}".rstrip()

    def fits(self, need: Need, user: str) -> bool:
        """Return whether it is about a need of a user."""
        is_same_verb = self.verb is need.verb or (self.allows and need.verb is Verb.DESCRIBE)
        return is_same_verb and self.resource is need.resource and matches(self.pattern, need.name, user)

    def covers(self, other: Rule, user: str) -> bool:
        """Return whether it is about everything that another rule of a user is about."""
        if (self.verb, self.resource) != (other.verb, other.resource):
            return False
        mine, theirs = (rule.pattern.replace(USER, user) for rule in (self, other))
        return mine == theirs or (mine.endswith("*") and theirs.startswith(mine[:-1]))


def matches(pattern: str, name: str, user: str) -> bool:
    """Return whether a pattern is about a name. A `*` stands for no name with a `%`: those are minimq's own."""
    pattern = pattern.replace(USER, user)
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1]) and "%" not in name
    return name == pattern


def parse_rule(text: str) -> Rule:
    """Return the rule in a text.

    Raises:
        InvalidArgument: it is none; the text says what is wrong, and what would be right.
    """
    words = text.split()
    if len(words) not in (3, 4) or words[0] not in ("allow", "deny"):
        raise InvalidArgument(f"the rule {text!r} is invalid: write allow or deny, a verb, a resource and a name, "
        "such as "
                              "'allow read topic orders*', or 'allow manage cluster'")  # fmt: skip
    try:
        resource = Resource(words[2])
    except ValueError:
        known = ", ".join(each.value for each in Resource)
        raise InvalidArgument(f"the rule {text!r} is about {words[2]!r}, which is no resource: write {known}") from None
    verbs = {each.value: each for each in VERBS[resource]}
    if words[1] not in verbs:
        raise InvalidArgument(f"the rule {text!r} has no verb of a {resource.value}: write {', '.join(verbs)}")
    if (resource is Resource.CLUSTER) != (len(words) == 3):
        wanted = "no name, there is one cluster" if resource is Resource.CLUSTER else "a name, or * for all"
        raise InvalidArgument(f"the rule {text!r} is about a {resource.value}: give it {wanted}")
    pattern = words[3] if len(words) == 4 else ""
    if len(pattern) > _MOST_LETTERS or not _PATTERN.fullmatch(pattern.replace(USER, "u")):
        raise InvalidArgument(
            f"the rule {text!r} has a name that nothing can have: a * may stand at the end only, {USER} for the user"
        )
    return Rule(words[0] == "allow", verbs[words[1]], resource, pattern)


def need_of(verb: str, resource: str, name: str = "") -> Need:
    """Return the need in three words. Raises `InvalidArgument` as `parse_rule`, and when the name is a pattern."""
    rule = parse_rule(f"allow {verb} {resource} {name}")
    if "*" in rule.pattern or USER in rule.pattern:
        raise InvalidArgument(f"{name!r} is a pattern: ask about one name")
    return Need(rule.verb, rule.resource, rule.pattern)
