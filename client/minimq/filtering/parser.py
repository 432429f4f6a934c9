"""Reads a where-expression.

expression = conjunction {OR conjunction}
conjunction = negation {AND negation}
negation = {NOT} condition
condition = "(" expression ")" | TRUE | FALSE | name test
test = ("=" | "<>" | "!=") constant | ("<" | "<=" | ">" | ">=") bound
     | IS [NOT] NULL
     | [NOT] (IN "(" bound {"," bound} ")" | BETWEEN bound AND bound | (CONTAINS | STARTSWITH | ENDSWITH) text)
bound = text | number
"""

from __future__ import annotations

from decimal import Decimal
from typing import Final

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
from minimq.filtering.mistake import mistake
from minimq.filtering.tokens import Token, TokenKind, scan
from minimq.filtering.values import Value, number_of
from minimq_common.errors import InvalidArgument

#: Parentheses within parentheses. Few enough that neither reading nor asking can exhaust the stack.
MAX_DEPTH: Final = 32
#: Names that mean the tag and the keys; in double quotes they are properties of that name.
_SYSTEM_NAMES: Final = {name.value: name for name in SystemName}

_ORDER = {"<": Operator.LESS, "<=": Operator.AT_MOST, ">": Operator.GREATER, ">=": Operator.AT_LEAST}
_PARTS = {"CONTAINS": Operator.CONTAINS, "STARTSWITH": Operator.STARTS_WITH, "ENDSWITH": Operator.ENDS_WITH}
_AFTER_NOT = "IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH"
_TYPES: dict[type, str] = {str: "text in single quotes", Decimal: "a number"}


def parse(text: str) -> Expression:
    """Return the expression that a text says. Raises `InvalidArgument`, which shows the place of the mistake."""
    return _Parser(text).parse()


class _Parser:
    """Looks at the next word and decides; never goes back."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._tokens = scan(text)
        self._last: Token | None = None
        self._next = next(self._tokens)
        self._depth = 0

    def parse(self) -> Expression:
        expression = self._expression()
        if self._next.kind is not TokenKind.END:
            raise self._unexpected("AND, OR or the end")
        return expression

    # ---- What conditions are joined with ------------------------------------------------------------

    def _expression(self) -> Expression:
        parts = [self._conjunction()]
        while self._skip("OR"):
            parts.append(self._conjunction())
        return Or(tuple(parts)) if len(parts) > 1 else parts[0]

    def _conjunction(self) -> Expression:
        parts = [self._negation()]
        while self._skip("AND"):
            parts.append(self._negation())
        return And(tuple(parts)) if len(parts) > 1 else parts[0]

    def _negation(self) -> Expression:
        negated = False
        while self._skip("NOT"):
            negated = not negated
        condition = self._condition()
        return Not(condition) if negated else condition

    # ---- Conditions ---------------------------------------------------------------------------------

    def _condition(self) -> Expression:
        match self._next:
            case Token(kind=TokenKind.WORD, value="("):
                return self._group()
            case Token(kind=TokenKind.CONSTANT, value=bool(truth)):
                self._advance()
                return Truth(truth)
            case Token(kind=TokenKind.NAME, written=written, value=str(name)):
                self._advance()
                return self._test(_SYSTEM_NAMES.get(written, name))
            case _:
                raise self._unexpected("a condition (it begins with the name of a property)")

    def _group(self) -> Expression:
        if self._depth == MAX_DEPTH:
            raise mistake(self._text, self._next.start, f"parentheses are nested deeper than {MAX_DEPTH} levels")
        self._depth += 1
        self._advance()
        expression = self._expression()
        self._take(")", "AND, OR or ')'")
        self._depth -= 1
        return expression

    def _test(self, name: Name) -> Expression:
        if self._skip("IS"):
            negated = self._skip("NOT")
            self._take("NULL", "NULL" if negated else "NULL or NOT NULL")
            test: Expression | None = IsNull(name)
        elif negated := self._skip("NOT"):
            test = self._wordy(name)
        elif negated := self._skip("<>") or self._skip("!="):
            test = Comparison(name, Operator.EQUAL, self._constant())
        else:
            test = self._symbolic(name) or self._wordy(name)
        if test is None:
            raise self._unexpected(
                _AFTER_NOT if negated else f"a comparison (=, <>, <, <=, >, >=, IS, NOT, {_AFTER_NOT})"
            )
        return Not(test) if negated else test

    def _symbolic(self, name: Name) -> Expression | None:
        if self._skip("="):
            return Comparison(name, Operator.EQUAL, self._constant())
        for symbol, operator in _ORDER.items():
            if self._skip(symbol):
                return Comparison(name, operator, self._bound(str, Decimal))
        return None

    def _wordy(self, name: Name) -> Expression | None:
        if self._skip("BETWEEN"):
            low = self._bound(str, Decimal)
            self._take("AND", "AND")
            return Between(name, low, self._bound(type(low)))
        if self._skip("IN"):
            return OneOf(name, self._list())
        for word, operator in _PARTS.items():
            if self._skip(word):
                return Comparison(name, operator, self._value(str))
        return None

    # ---- Values -------------------------------------------------------------------------------------

    def _list(self) -> tuple[Value, ...]:
        self._take("(", "'('")
        values = [self._value(str, Decimal)]
        while self._skip(","):
            values.append(self._value(type(values[0])))
        self._take(")", "',' or ')'")
        return tuple(values)

    def _bound(self, *types: type) -> Value:
        place = self._next.start
        value = self._value(*types)
        if isinstance(value, str) and number_of(value) is not None:
            # As text '9' is greater than '10', and whoever writes that means the number.
            raise mistake(self._text, place, f"numbers are compared by size without quotes: write {value}")
        return value

    def _constant(self) -> Value:
        return self._value(str, Decimal, bool)

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
        hint = ""
        if self._next.kind is TokenKind.NAME and expected == "a value":
            hint = "; text stands in single quotes"
        elif self._next.value == "NULL" and self._next.kind is TokenKind.WORD:
            hint = ", which stands only behind IS or IS NOT"
        return mistake(self._text, self._next.start, f"expected {expected}{after} but found {self._next}{hint}")
