"""The tokens of a where-expression, their values, and errors that point at their place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from typing import NamedTuple
from unicodedata import east_asian_width

from minimq_common.errors import InvalidArgument

# Nothing is calculated, so that a name may have a hyphen in it. A number takes all that could be meant as a part of it,
# so that 1.2.3 and 2024-06-01 are refused as a whole. `*+` takes no quote back: 'it'' is a text without an end.
_PATTERN = re.compile(
    r"""
      (?P<space>  \s+ )
    | (?P<text>   '(?:[^']+|'')*+' )
    | (?P<quoted> "(?:[^"]+|"")*+" )
    | (?P<number> [+-]?\.?[0-9][A-Za-z0-9_.+-]* )
    | (?P<name>   [A-Za-z_$][A-Za-z0-9_$.-]* )
    | (?P<symbol> <> | != | <= | >= | [=<>(),] )
    """,
    re.VERBOSE,
)
_KEYWORDS = frozenset(["AND", "OR", "NOT", "IS", "NULL", "IN", "BETWEEN", "CONTAINS", "STARTSWITH", "ENDSWITH"])
#: Characters of a long word that an error shows.
_SHOWN = 40
#: Characters of a long line that are shown on each side of the place.
_AROUND = 60

#: What a property is compared with. Decimals, because they are exact: neither 0.1 nor a long id is rounded.
Value = str | Decimal | bool

# The exponent is bounded, so that Decimal takes whatever matches. No part can match in two ways, so that a long text
# which is no number costs no more than one that is.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TRUTHS = {"true": True, "false": False}


class TokenKind(Enum):
    """The kind of a token."""

    NAME = "name"
    CONSTANT = "constant"
    WORD = "keyword or symbol"
    END = "end"


class Token(NamedTuple):
    """One word."""

    kind: TokenKind
    start: int
    written: str
    value: Value

    def __str__(self) -> str:
        if self.kind is TokenKind.END:
            return "the end"
        shown = _shown(self.written)
        if self.kind is TokenKind.NAME:
            return f"the name {shown}"
        if self.kind is TokenKind.WORD or isinstance(self.value, bool):
            return f"'{shown}'"
        return f"the text {shown}" if isinstance(self.value, str) else f"the number {shown}"


def scan(text: str) -> Iterator[Token]:
    """Yield the words of a text, at last one of the kind END. Raises `InvalidArgument` for what is no word."""
    place = end = 0
    while place < len(text):
        match = _PATTERN.match(text, place)
        if match is None:
            raise _no_word(text, place)
        place = match.end()
        if match.lastgroup != "space":
            end = place
            yield _token(text, match)
    yield Token(TokenKind.END, end, "", "")


def _token(text: str, match: re.Match[str]) -> Token:
    start, written = match.start(), match.group()
    match match.lastgroup:
        case "text":
            return Token(TokenKind.CONSTANT, start, written, written[1:-1].replace("''", "'"))
        case "quoted":
            return Token(TokenKind.NAME, start, written, written[1:-1].replace('""', '"'))
        case "number":
            number = number_of(written)
            if number is None:
                raise mistake(text, start, f"{_shown(written)} is no number; text stands in single quotes")
            return Token(TokenKind.CONSTANT, start, written, number)
        case "name" if (truth := truth_of(written)) is not None:
            return Token(TokenKind.CONSTANT, start, written, truth)
        case "name" if written.upper() not in _KEYWORDS:
            return Token(TokenKind.NAME, start, written, written)
        case _:
            return Token(TokenKind.WORD, start, written, written.upper())


def _shown(written: str) -> str:
    return _printable(written if len(written) <= _SHOWN else f"{written[:_SHOWN]}...")


def _no_word(text: str, place: int) -> InvalidArgument:
    char = text[place]
    if char == "'":
        return mistake(text, place, "a text begins here that no single quote ends")
    if char == '"':
        return mistake(text, place, "a name begins here that no double quote ends")
    if char in "+-*/%":
        return mistake(text, place, f"unexpected character {char!r}: nothing can be calculated")
    hint = "a name with such a character stands in double quotes, text in single quotes"
    return mistake(text, place, f"unexpected character {char!r}; {hint}")


def number_of(text: str) -> Decimal | None:
    """Return the number that is written in a text, None when it is none.

    A number has digits, perhaps a sign, a decimal point, an exponent of up to four digits, and nothing else: neither
    spaces nor `inf`.
    """
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def truth_of(text: str) -> bool | None:
    """Return True for "true" and False for "false", in upper or lower case; None for anything else."""
    return _TRUTHS.get(text.lower())


def mistake(text: str, place: int, problem: str) -> InvalidArgument:
    """Return an error with the line of the text in which the place is, and a caret under the place."""
    start = text.rfind("\n", 0, place) + 1
    end = text.find("\n", place) if "\n" in text[place:] else len(text)
    first, last = max(start, place - _AROUND), min(end, place + _AROUND)
    before = ("..." if first > start else "") + _printable(text[first:place])
    after = _printable(text[place:last]) + ("..." if last < end else "")
    return InvalidArgument(f"where: {problem}:\n  {before}{after}\n  {' ' * _columns(before)}^")


def _printable(text: str) -> str:
    """Return a text of the same length that a terminal shows on one line."""
    return "".join(char if char.isprintable() else " " for char in text)


def _columns(text: str) -> int:
    return sum(2 if east_asian_width(char) in {"W", "F"} else 1 for char in text)
