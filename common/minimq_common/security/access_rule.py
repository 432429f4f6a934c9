"""Rules of access: "allow read topic orders*"."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum

from minimq_common.errors import InvalidArgument


class Resource(Enum):
    TOPIC = "topic"
    GROUP = "group"
    TRANSACTION = "transaction"
    CLUSTER = "cluster"


class Verb(Enum):
    """A kind of use. Every other verb includes `DESCRIBE`."""

    READ = "read"
    WRITE = "write"
    MANAGE = "manage"
    DESCRIBE = "describe"
    BACKUP = "backup"


#: The verbs of each resource.
VERBS: dict[Resource, tuple[Verb, ...]] = {
    Resource.TOPIC: (Verb.WRITE, Verb.READ, Verb.MANAGE, Verb.DESCRIBE),
    Resource.GROUP: (Verb.READ, Verb.MANAGE, Verb.DESCRIBE),
    Resource.TRANSACTION: (Verb.WRITE, Verb.DESCRIBE),
    Resource.CLUSTER: (Verb.DESCRIBE, Verb.MANAGE, Verb.BACKUP),
}

#: Stands for the name of the user in a pattern.
USER = "${user}"

_PATTERN = re.compile(r"[A-Za-z0-9_.%-]*\*?")
_MAX_LETTERS = 255


@dataclass(frozen=True, slots=True)
class Need:
    """A right that a request needs."""

    verb: Verb
    resource: Resource
    #: Empty for the cluster.
    name: str = ""

    def __str__(self) -> str:
        return f"{self.verb.value} {self.resource.value} {self.name}".rstrip()


@dataclass(frozen=True, slots=True)
class Rule:
    allows: bool
    verb: Verb
    resource: Resource
    #: A name, or a prefix with a `*`; empty for the cluster.
    pattern: str = ""

    def __str__(self) -> str:
        effect = "allow" if self.allows else "deny"
        return f"{effect} {self.verb.value} {self.resource.value} {self.pattern}".rstrip()

    def fits(self, need: Need, user: str) -> bool:
        is_same_verb = self.verb is need.verb or (self.allows and need.verb is Verb.DESCRIBE)
        return is_same_verb and self.resource is need.resource and matches(self.pattern, need.name, user)


def matches(pattern: str, name: str, user: str) -> bool:
    """Return whether a pattern matches a name. A `*` stands for text without `%`: topics with one are minimq's own."""
    pattern = pattern.replace(USER, user)
    if pattern.endswith("*"):
        return name.startswith(pattern[:-1]) and "%" not in name[len(pattern) - 1 :]
    return name == pattern


def parse_rule(text: str) -> Rule:
    """Parse a rule. Raises `InvalidArgument`."""
    words, what = text.split(), f"the rule {text!r}"
    if len(words) not in (3, 4) or words[0] not in ("allow", "deny"):
        raise InvalidArgument(f"{what} is invalid: write allow or deny, a verb, a resource and a name, such as "
                              "'allow read topic orders*', or 'allow manage cluster'")  # fmt: skip
    return Rule(words[0] == "allow", *_right_of(words[1:], what))


def need_of(verb: str, resource: str, name: str = "") -> Need:
    """Parse a right from its three words. Raises `InvalidArgument`, also if the name is a pattern."""
    asked = [verb, resource, name] if name else [verb, resource]
    right = _right_of(asked, repr(" ".join(asked)))
    if "*" in right[2] or USER in right[2]:
        raise InvalidArgument(f"{name!r} is a pattern: ask about one name")
    return Need(*right)


def _right_of(words: list[str], what: str) -> tuple[Verb, Resource, str]:
    try:
        resource = Resource(words[1])
    except ValueError:
        known = ", ".join(each.value for each in Resource)
        raise InvalidArgument(f"{what} is about {words[1]!r}, which is no resource; use one of: {known}") from None
    verbs = {each.value: each for each in VERBS[resource]}
    if words[0] not in verbs:
        known = ", ".join(verbs)
        raise InvalidArgument(f"{what} has {words[0]!r}, which is no verb of a {resource.value}; use one of: {known}")
    if (resource is Resource.CLUSTER) != (len(words) == 2):
        wanted = "no name, there is one cluster" if resource is Resource.CLUSTER else "a name, or * for all"
        raise InvalidArgument(f"{what} is about a {resource.value}: give it {wanted}")
    pattern = words[2] if len(words) == 3 else ""
    if len(pattern) > _MAX_LETTERS or not _PATTERN.fullmatch(pattern.replace(USER, "u")):
        raise InvalidArgument(
            f"{what} has a name that nothing can have: a * may stand at the end only, {USER} for the user"
        )
    return verbs[words[0]], resource, pattern
