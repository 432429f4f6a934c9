"""Makes functions of where-expressions.

A condition about a property that a message does not have is neither true nor false but unknown, and NOT leaves it so.
No third value is needed to work that out: for each expression there can be a function that tells whether it is true,
and another one that tells whether it is false. Both say no when it is unknown. NOT swaps the two, and "a AND b" is
false where a is false or b is false: so only one of the two is made of each part, and AND and OR stop at the first part
that decides.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from minimq.filtering.expression import (
    And,
    Between,
    Comparison,
    Expression,
    IsNull,
    Name,
    Not,
    OneOf,
    Operator,
    Or,
    SystemName,
    Truth,
)
from minimq.filtering.values import Value, number_of, truth_of

#: Tells something about the properties, the tag and the keys of a message.
Check = Callable[[Mapping[str, str], str | None, Sequence[str]], bool]
#: Tells something about a property that is there; None when it is unknown, because the text is no number, for example.
Ask = Callable[[str], bool | None]


def compile_expression(expression: Expression, wanted: bool = True) -> Check:  # noqa: PLR0911 - one for each form
    """Return a function that tells whether the expression is what is wanted: true, or false. Unknown is neither."""
    match expression:
        case Not(part):
            return compile_expression(part, not wanted)
        case And(parts):
            checks = tuple(compile_expression(part, wanted) for part in parts)
            return _all_of(checks) if wanted else _any_of(checks)
        case Or(parts):
            checks = tuple(compile_expression(part, wanted) for part in parts)
            return _any_of(checks) if wanted else _all_of(checks)
        case Truth(value):
            return lambda _properties, _tag, _keys: value is wanted
        case IsNull(name):
            return _is_null(name, wanted)
        case Comparison(name, operator, value):
            return _check(name, _as_type_of(value, _comparison(operator, value)), wanted)
        case Between(name, low, high):
            return _check(name, _as_type_of(low, _between(low, high)), wanted)
        case OneOf(name, values):
            return _check(name, _as_type_of(values[0], frozenset(values).__contains__), wanted)


def _all_of(checks: Iterable[Check]) -> Check:
    def check(properties: Mapping[str, str], tag: str | None, keys: Sequence[str]) -> bool:
        for part in checks:  # noqa: SIM110 - a generator in all() would cost more than the parts
            if not part(properties, tag, keys):
                return False
        return True

    return check


def _any_of(checks: Iterable[Check]) -> Check:
    def check(properties: Mapping[str, str], tag: str | None, keys: Sequence[str]) -> bool:
        for part in checks:  # noqa: SIM110 - as above
            if part(properties, tag, keys):
                return True
        return False

    return check


def _is_null(name: Name, wanted: bool) -> Check:
    if name is SystemName.TAGS:
        return lambda _properties, tag, _keys: (tag is None) is wanted
    if name is SystemName.KEYS:
        return lambda _properties, _tag, keys: (not keys) is wanted
    return lambda properties, _tag, _keys: (name not in properties) is wanted


def _check(name: Name, ask: Ask, wanted: bool) -> Check:
    if name is SystemName.TAGS:
        return lambda _properties, tag, _keys: tag is not None and ask(tag) is wanted
    if name is SystemName.KEYS:
        return _check_keys(ask, wanted)

    def check(properties: Mapping[str, str], _tag: str | None, _keys: Sequence[str]) -> bool:
        text = properties.get(name)
        return text is not None and ask(text) is wanted

    return check


def _check_keys(ask: Ask, wanted: bool) -> Check:
    if wanted:
        return lambda _properties, _tag, keys: any(ask(key) is True for key in keys)
    return lambda _properties, _tag, keys: bool(keys) and all(ask(key) is False for key in keys)


def _as_type_of(value: Value, ask: Callable[[Any], bool]) -> Ask:
    if isinstance(value, str):
        return ask
    read: Callable[[str], Decimal | bool | None] = number_of if isinstance(value, Decimal) else truth_of

    def read_and_ask(text: str) -> bool | None:
        found = read(text)
        return None if found is None else ask(found)

    return read_and_ask


def _between(low: Any, high: Any) -> Callable[[Any], bool]:
    return lambda found: low <= found <= high


def _comparison(operator: Operator, value: Any) -> Callable[[Any], bool]:  # noqa: PLR0911 - one for each operator
    match operator:
        case Operator.EQUAL:
            return lambda found: found == value
        case Operator.LESS:
            return lambda found: found < value
        case Operator.AT_MOST:
            return lambda found: found <= value
        case Operator.GREATER:
            return lambda found: found > value
        case Operator.AT_LEAST:
            return lambda found: found >= value
        case Operator.CONTAINS:
            return lambda found: value in found
        case Operator.STARTS_WITH:
            return lambda found: found.startswith(value)
        case Operator.ENDS_WITH:
            return lambda found: found.endswith(value)
