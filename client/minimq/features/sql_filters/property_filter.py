"""Subscriptions by property: conditions as behind WHERE in SQL, for example `region = 'eu' AND amount > 10`.

    expression = conjunction {OR conjunction}
    conjunction = negation {AND negation}
    negation = {NOT} condition
    condition = "(" expression ")" | TRUE | FALSE | name test
    test = ("=" | "<>" | "!=") constant | ("<" | "<=" | ">" | ">=") bound
         | IS [NOT] NULL
         | [NOT] (IN "(" bound {"," bound} ")" | BETWEEN bound AND bound | (CONTAINS | STARTSWITH | ENDSWITH) text)
    bound = text | number

As in SQL, a condition on a property that a message does not have is neither true nor false but unknown, and so is its
negation. Instead of a third truth value, each condition has two functions: `is_true` and `is_false`. Both return False
for unknown. NOT swaps them, and "a AND b" is false if a is false or b is false.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from functools import partial
from typing import Any, Final, NamedTuple

from minimq.features.sql_filters.tokens import Token, TokenKind, Value, mistake, number_of, scan, truth_of
from minimq_common.errors import InvalidArgument
from minimq_common.text_units import kind_of

#: Characters that a where-expression may have.
MAX_LENGTH: Final = 4096
#: Nesting of parentheses. Low enough that neither parsing nor matching can exhaust the stack.
MAX_DEPTH: Final = 32

#: A predicate on the properties, the tag and the keys of a message.
Check = Callable[[Mapping[str, str], str | None, Sequence[str]], bool]
#: A predicate on the text of a property; None for unknown, for example if the text is no number.
Ask = Callable[[str], bool | None]

#: Called with the constant first and the property second, so `<` is `gt`.
_ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.gt,
    "<=": operator.ge,
    ">": operator.lt,
    ">=": operator.le,
}
_PARTS: dict[str, Callable[[Any, Any], bool]] = {
    "CONTAINS": lambda value, found: value in found,
    "STARTSWITH": lambda value, found: found.startswith(value),
    "ENDSWITH": lambda value, found: found.endswith(value),
}
_AFTER_NOT = "IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH"
_TYPES: dict[type, str] = {str: "text in single quotes", Decimal: "a number"}


class PropertyFilter:
    """A where-expression; see docs/filtering.md. Immutable; thread-safe. Raises `InvalidArgument` if malformed."""

    __slots__ = ("_check", "names", "reads_keys")

    def __init__(self, text: str) -> None:
        if not isinstance(text, str):
            raise InvalidArgument(f"where is {kind_of(text)}: give the text of an expression")
        if len(text) > MAX_LENGTH:
            raise InvalidArgument(f"where: the expression has {len(text):,} characters, the limit is {MAX_LENGTH:,}")
        if not text.strip():
            raise InvalidArgument("where: the expression is empty; write, for example, region = 'eu' AND amount > 10")
        parser = _Parser(text)
        self._check = parser.parse().is_true
        self.names, self.reads_keys = frozenset(parser.names), parser.reads_keys

    def matches(self, properties: Mapping[str, str], tag: str | None, keys: Sequence[str] = ()) -> bool:
        """Return True if the expression is true for a message; False if it is false or unknown."""
        return self._check(properties, tag, keys)


class _Condition(NamedTuple):
    is_true: Check
    is_false: Check

    def swapped(self, negated: bool) -> _Condition:
        return _Condition(self.is_false, self.is_true) if negated else self


class _Parser:
    """A recursive-descent parser without backtracking."""

    def __init__(self, text: str) -> None:
        self.names: set[str] = set()
        self.reads_keys = False
        self._tokens = scan(text)
        self._last: Token | None = None
        self._next = next(self._tokens)
        self._depth = 0

    def parse(self) -> _Condition:
        condition = self._expression()
        if self._next.kind is not TokenKind.END:
            raise self._unexpected("AND, OR or the end")
        return condition

    # ---- AND, OR, NOT ---------------------------------------------------------------------------------

    def _expression(self) -> _Condition:
        parts = [self._conjunction()]
        while self._skip("OR"):
            parts.append(self._conjunction())
        return _Condition(_any_of(each.is_true for each in parts), _all_of(each.is_false for each in parts))

    def _conjunction(self) -> _Condition:
        parts = [self._negation()]
        while self._skip("AND"):
            parts.append(self._negation())
        return _Condition(_all_of(each.is_true for each in parts), _any_of(each.is_false for each in parts))

    def _negation(self) -> _Condition:
        negated = False
        while self._skip("NOT"):
            negated = not negated
        return self._condition().swapped(negated)

    # ---- Conditions ---------------------------------------------------------------------------------

    def _condition(self) -> _Condition:
        match self._next:
            case Token(kind=TokenKind.WORD, value="("):
                return self._group()
            case Token(kind=TokenKind.CONSTANT, value=bool(truth)):
                self._advance()
                return _Condition(lambda *_: truth, lambda *_: not truth)
            case Token(kind=TokenKind.NAME, written=written, value=str(name)):
                self._advance()
                # Without quotes TAGS and KEYS are not properties; in double quotes they are.
                about = written if written in ("TAGS", "KEYS") else ""
                self.reads_keys |= about == "KEYS"
                self.names.update(() if about else (name,))
                return self._test(about, name)
            case _:
                raise self._unexpected("a condition (it begins with the name of a property)")

    def _group(self) -> _Condition:
        if self._depth == MAX_DEPTH:
            raise mistake(self._next.start, f"parentheses are nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        self._advance()
        condition = self._expression()
        self._take(")", "AND, OR or ')'")
        self._depth -= 1
        return condition

    def _test(self, about: str, name: str) -> _Condition:
        if self._skip("IS"):
            negated = self._skip("NOT")
            self._take("NULL", "NULL" if negated else "NULL or NOT NULL")
            return _is_null(about, name).swapped(negated)
        if negated := self._skip("NOT"):
            ask = self._wordy()
        elif negated := self._skip("<>") or self._skip("!="):
            ask = self._equals()
        else:
            ask = self._symbolic() or self._wordy()
        if ask is None:
            raise self._unexpected(
                _AFTER_NOT if negated else f"a comparison (=, <>, <, <=, >, >=, IS, NOT, {_AFTER_NOT})"
            )
        return _asks(about, name, ask).swapped(negated)

    def _equals(self) -> Ask:
        value = self._value(str, Decimal, bool)
        return _as_type_of(value, partial(operator.eq, value))

    def _symbolic(self) -> Ask | None:
        if self._skip("="):
            return self._equals()
        for symbol, compare in _ORDER.items():
            if self._skip(symbol):
                value = self._bound(str, Decimal)
                return _as_type_of(value, partial(compare, value))
        return None

    def _wordy(self) -> Ask | None:
        if self._skip("BETWEEN"):
            low: Any = self._bound(str, Decimal)
            self._take("AND", "AND")
            high: Any = self._bound(type(low))
            return _as_type_of(low, lambda found: low <= found <= high)
        if self._skip("IN"):
            values = self._list()
            return _as_type_of(values[0], frozenset(values).__contains__)
        for word, compare in _PARTS.items():
            if self._skip(word):
                return partial(compare, self._value(str))
        return None

    # ---- Values -------------------------------------------------------------------------------------

    def _list(self) -> list[Value]:
        self._take("(", "'('")
        values = [self._value(str, Decimal)]
        while self._skip(","):
            values.append(self._value(type(values[0])))
        self._take(")", "',' or ')'")
        return values

    def _bound(self, *types: type) -> Value:
        place = self._next.start
        value = self._value(*types)
        if isinstance(value, str) and number_of(value) is not None:
            # As text, '9' is greater than '10'; the user surely means numbers.
            raise mistake(place, f"numbers are compared by size without quotes: write {value}")
        return value

    def _value(self, *types: type) -> Value:
        token = self._next
        if token.kind is not TokenKind.CONSTANT or type(token.value) not in types:
            is_wrong_type = token.kind is TokenKind.CONSTANT or len(types) == 1
            raise self._unexpected(" or ".join(_TYPES[kind] for kind in types) if is_wrong_type else "a value")
        self._advance()
        return token.value

    # ---- Words --------------------------------------------------------------------------------------

    def _advance(self) -> None:
        self._last, self._next = self._next, next(self._tokens)

    def _skip(self, word: str) -> bool:
        found = self._next.kind is TokenKind.WORD and self._next.value == word
        if found:
            self._advance()
        return found

    def _take(self, word: str, expected: str) -> None:
        if not self._skip(word):
            raise self._unexpected(expected)

    def _unexpected(self, expected: str) -> InvalidArgument:
        after = f" after {self._last}" if self._last else ""
        hint = "; put text in single quotes" if self._next.kind is TokenKind.NAME and expected == "a value" else ""
        return mistake(self._next.start, f"expected {expected}{after} but found {self._next}{hint}")


# ---- Checks ------------------------------------------------------------------------------------------


def _all_of(parts: Iterable[Check]) -> Check:
    checks = tuple(parts)

    def check(properties: Mapping[str, str], tag: str | None, keys: Sequence[str]) -> bool:
        for part in checks:  # noqa: SIM110 - a generator in all() would cost more than the parts
            if not part(properties, tag, keys):
                return False
        return True

    return check if len(checks) > 1 else checks[0]


def _any_of(parts: Iterable[Check]) -> Check:
    checks = tuple(parts)

    def check(properties: Mapping[str, str], tag: str | None, keys: Sequence[str]) -> bool:
        for part in checks:  # noqa: SIM110 - as above
            if part(properties, tag, keys):
                return True
        return False

    return check if len(checks) > 1 else checks[0]


def _is_null(about: str, name: str) -> _Condition:
    if about == "TAGS":
        return _Condition(lambda _properties, tag, _keys: tag is None, lambda _properties, tag, _keys: tag is not None)
    if about == "KEYS":
        return _Condition(lambda _properties, _tag, keys: not keys, lambda _properties, _tag, keys: bool(keys))
    return _Condition(
        lambda properties, _tag, _keys: name not in properties, lambda properties, _tag, _keys: name in properties
    )


def _asks(about: str, name: str, ask: Ask) -> _Condition:
    if about == "KEYS":
        return _Condition(
            lambda _properties, _tag, keys: any(ask(key) is True for key in keys),
            lambda _properties, _tag, keys: bool(keys) and all(ask(key) is False for key in keys),
        )

    def is_answered(wanted: bool) -> Check:
        if about == "TAGS":
            return lambda _properties, tag, _keys: tag is not None and ask(tag) is wanted

        def check(properties: Mapping[str, str], _tag: str | None, _keys: Sequence[str]) -> bool:
            text = properties.get(name)
            return text is not None and ask(text) is wanted

        return check

    return _Condition(is_answered(True), is_answered(False))


def _as_type_of(value: Value, ask: Callable[[Any], bool]) -> Ask:
    if isinstance(value, str):
        return ask
    read: Callable[[str], Decimal | bool | None] = number_of if isinstance(value, Decimal) else truth_of

    def read_and_ask(text: str) -> bool | None:
        found = read(text)
        return None if found is None else ask(found)

    return read_and_ask
