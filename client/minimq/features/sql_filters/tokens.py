"""The tokens of a where-expression, their values, and errors that name their place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterator
from decimal import Decimal
from enum import Enum
from typing import NamedTuple

from minimq_common.errors import InvalidArgument

# There is no arithmetic, so a name may contain a hyphen. A number takes every character that could belong to it, so
# 1.2.3 and 2024-06-01 are rejected as a whole. `*+` does not backtrack over quotes: 'it'' is an unterminated text.
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

#: Properties are compared with these. Decimals are exact: neither 0.1 nor a long id is rounded.
Value = str | Decimal | bool

# The exponent is bounded, so Decimal accepts every match. No part can match in two ways, so a long text that is no
# number is rejected in linear time.
_NUMBER = re.compile(r"[+-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]{1,4})?")
_TRUTHS = {"true": True, "false": False}


class TokenKind(Enum):
    NAME = "name"
    CONSTANT = "constant"
    WORD = "keyword or symbol"
    END = "end"


class Token(NamedTuple):
    """One token, with its position in the text."""

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
    """Yield the tokens of a text, the last one of kind END. Raises `InvalidArgument` at an unexpected character."""
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
                raise mistake(start, f"{_shown(written)} is no number; put text in single quotes")
            return Token(TokenKind.CONSTANT, start, written, number)
        case "name" if (truth := truth_of(written)) is not None:
            return Token(TokenKind.CONSTANT, start, written, truth)
        case "name" if written.upper() not in _KEYWORDS:
            return Token(TokenKind.NAME, start, written, written)
        case _:
            return Token(TokenKind.WORD, start, written, written.upper())


def _shown(written: str) -> str:
    shown = written if len(written) <= _SHOWN else f"{written[:_SHOWN]}..."
    return "".join(char if char.isprintable() else " " for char in shown)  # on one line


def _no_word(text: str, place: int) -> InvalidArgument:
    char = text[place]
    if char == "'":
        return mistake(place, "this text has no closing single quote")
    if char == '"':
        return mistake(place, "this name has no closing double quote")
    hint = "put a name with such a character in double quotes, text in single quotes"
    return mistake(place, f"unexpected character {char!r}; {hint}")


def number_of(text: str) -> Decimal | None:
    """Return the number that a text is; None if it is not one."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def truth_of(text: str) -> bool | None:
    """Return True for "true" and False for "false", in upper or lower case; None for anything else."""
    return _TRUTHS.get(text.lower())


def mistake(place: int, problem: str) -> InvalidArgument:
    return InvalidArgument(f"where: {problem}, at character {place + 1}")
