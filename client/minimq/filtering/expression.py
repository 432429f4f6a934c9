"""Where-expressions as trees.

NOT has no form of its own: `a <> 1` is `Not(Comparison("a", EQUAL, 1))`, and so on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

from minimq.filtering.values import Value


class SystemName(Enum):
    """An attribute of a message besides its properties, by the name that RocketMQ gives it."""

    TAGS = "TAGS"
    KEYS = "KEYS"


#: Name of a property, or the tag or the keys.
Name = str | SystemName


class Operator(Enum):
    """An operator that compares a property with one value."""

    EQUAL = "="
    LESS = "<"
    AT_MOST = "<="
    GREATER = ">"
    AT_LEAST = ">="
    CONTAINS = "CONTAINS"
    STARTS_WITH = "STARTSWITH"
    ENDS_WITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Comparison:
    """`amount > 10`."""

    name: Name
    operator: Operator
    value: Value


@dataclass(frozen=True, slots=True)
class Between:
    """`amount BETWEEN 10 AND 20`; both ends are in it and are of the same type."""

    name: Name
    low: Value
    high: Value


@dataclass(frozen=True, slots=True)
class OneOf:
    """`region IN ('eu', 'us')`; all values, at least one, are of the same type."""

    name: Name
    values: tuple[Value, ...]


@dataclass(frozen=True, slots=True)
class IsNull:
    """`region IS NULL`: the message has no such property."""

    name: Name


@dataclass(frozen=True, slots=True)
class Truth:
    """`TRUE` or `FALSE`."""

    value: bool


@dataclass(frozen=True, slots=True)
class Not:
    """`NOT part`."""

    part: Expression


@dataclass(frozen=True, slots=True)
class And:
    """`part AND part AND ...`."""

    parts: tuple[Expression, ...]


@dataclass(frozen=True, slots=True)
class Or:
    """`part OR part OR ...`."""

    parts: tuple[Expression, ...]


Expression = Comparison | Between | OneOf | IsNull | Truth | Not | And | Or


def names_in(expression: Expression) -> Iterator[Name]:
    """Yield all names in an expression, some of them more than once."""
    match expression:
        case And(parts) | Or(parts):
            for part in parts:
                yield from names_in(part)
        case Not(part):
            yield from names_in(part)
        case Truth():
            pass
        case Comparison(name) | Between(name) | OneOf(name) | IsNull(name):
            yield name
