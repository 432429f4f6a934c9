"""Where-expressions as plain tuples: made at random, written as text, and worked out by the tables of SQL."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import strategies as st

#: (form, ...): see `evaluate`.
Tree = tuple[Any, ...]

#: Names of properties; None is the tag.
NAMES = [None, "a", "b", "trace-id", "$x.y", "AND", "größe", 'say "so"', "TAGS", ""]
NUMBERS = ["0", "-0", "1", "+1", "1.0", "-1", "10", "9", "1e1", ".5", "5.", "0.1", "0.10", "9007199254740993", "1E-3"]
WORDS = ["", "eu", "EU", "us", "it's", "é", "华东", "true", "FALSE", "nan", "inf", " 1", "1_0", "٣", "1e", "e1", "0x1"]
TEXTS = NUMBERS + WORDS

_names = st.sampled_from(NAMES)
_numbers = st.sampled_from(NUMBERS).map(lambda written: ("number", written))
_texts = st.sampled_from(TEXTS).map(lambda written: ("text", written))
_words = st.sampled_from(WORDS).map(lambda written: ("text", written))  # what has an order and is no number
_truths = st.booleans().map(lambda truth: ("truth", truth))

_leaves: st.SearchStrategy[Tree] = st.one_of(
    st.tuples(st.just("TRUTH"), st.booleans()),
    st.tuples(st.sampled_from(["IS NULL", "IS NOT NULL"]), _names),
    st.tuples(st.sampled_from(["=", "<>", "!="]), _names, _numbers | _texts | _truths),
    st.tuples(st.sampled_from(["<", "<=", ">", ">="]), _names, _numbers | _words),
    st.tuples(st.sampled_from(["CONTAINS", "STARTSWITH", "ENDSWITH"]), _names, _texts, st.booleans()),
    st.tuples(st.just("BETWEEN"), _names, st.tuples(_numbers, _numbers) | st.tuples(_words, _words), st.booleans()),
    st.tuples(
        st.just("IN"),
        _names,
        st.lists(_numbers, min_size=1, max_size=3) | st.lists(_texts, min_size=1, max_size=3),
        st.booleans(),
    ),
)
trees: st.SearchStrategy[Tree] = st.recursive(
    _leaves,
    lambda parts: st.one_of(
        st.tuples(st.just("NOT"), parts),
        st.tuples(st.sampled_from(["AND", "OR"]), st.lists(parts, min_size=2, max_size=4)),
    ),
    max_leaves=12,
)


# ---- What it is ---------------------------------------------------------------------------------


def evaluate(tree: Tree, properties: Mapping[str, str], tag: str | None) -> bool | None:
    """Return what the tree is for a message; None when it is unknown."""
    form, first, *rest = tree
    if form == "TRUTH":
        return bool(first)
    if form == "NOT":
        return _not(evaluate(first, properties, tag))
    if form in {"AND", "OR"}:
        answers = [evaluate(part, properties, tag) for part in first]
        decides: bool = form == "OR"
        return decides if decides in answers else None if None in answers else not decides
    text = tag if first is None else properties.get(first)
    if form in {"IS NULL", "IS NOT NULL"}:
        return (text is None) is (form == "IS NULL")
    answer = _compare(form, text, rest[0])
    return _not(answer) if rest[1:] == [True] else answer


def _not(answer: bool | None) -> bool | None:
    return None if answer is None else not answer


def _compare(form: str, text: str | None, constant: Any) -> bool | None:
    constants = [constant] if isinstance(constant[0], str) else list(constant)
    found = None if text is None else _meaning(constants[0][0], text)
    if found is None:
        return None
    wanted = [_meaning(kind, written) if kind != "truth" else written for kind, written in constants]
    answers: dict[str, Callable[[], bool]] = {
        "=": lambda: found == wanted[0],
        "<>": lambda: found != wanted[0],
        "!=": lambda: found != wanted[0],
        "<": lambda: found < wanted[0],
        "<=": lambda: found <= wanted[0],
        ">": lambda: found > wanted[0],
        ">=": lambda: found >= wanted[0],
        "CONTAINS": lambda: found.find(wanted[0]) >= 0,
        "STARTSWITH": lambda: found[: len(wanted[0])] == wanted[0],
        "ENDSWITH": lambda: found.removesuffix(wanted[0]) + wanted[0] == found,
        "BETWEEN": lambda: found >= wanted[0] and found <= wanted[1],
        "IN": lambda: any(found == value for value in wanted),
    }
    return answers[form]()


def _meaning(kind: str, text: str) -> Any:
    if kind == "text":
        return text
    if kind == "truth":
        return {"TRUE": True, "FALSE": False}.get(text.upper())
    is_number = text.isascii() and re.search("[0-9]", text) and not re.search("[^0-9.eE+-]", text)
    try:
        return Fraction(text) if is_number else None
    except ValueError:
        return None


# ---- How it is written --------------------------------------------------------------------------


def render(tree: Tree, random: Random) -> str:
    """Return a tree as text, with spaces, letters and needless parentheses at random."""
    return _render(tree, random, 0)


def _render(tree: Tree, random: Random, binds: int) -> str:
    """Write a tree that stands where only what binds at least so strongly needs no parentheses."""
    form, *rest = tree
    strength = {"OR": 0, "AND": 1, "NOT": 2}.get(form, 3)
    if strength < binds or random.random() < 0.1:
        return f"({_space(random, '')}{_render(tree, random, 0)}{_space(random, '')})"
    if form in {"AND", "OR"}:
        joint = _space(random) + _keyword(form, random) + _space(random)
        return joint.join(_render(part, random, strength + 1) for part in rest[0])
    if form == "NOT":
        return _keyword("NOT", random) + _space(random) + _render(rest[0], random, strength)
    if form == "TRUTH":
        return _constant(("truth", rest[0]), random)
    words = [_name(rest[0], random)]
    if len(rest) == 3 and rest[2]:
        words.append(_keyword("NOT", random))
    words += [_keyword(word, random) for word in form.split()]
    if form == "IN":
        words += ["(" + ",".join(_constant(value, random) for value in rest[1]) + ")"]
    elif form == "BETWEEN":
        low, high = rest[1]
        words += [_constant(low, random), _keyword("AND", random), _constant(high, random)]
    elif len(rest) > 1:
        words.append(_constant(rest[1], random))
    return _space(random).join(words)


def _name(name: str | None, random: Random) -> str:
    if name is None:
        return "TAGS"
    if name in {"a", "b", "trace-id", "$x.y"} and random.random() < 0.5:
        return name
    return '"' + name.replace('"', '""') + '"'


def _constant(constant: tuple[str, Any], random: Random) -> str:
    kind, value = constant[0], str(constant[1])
    if kind == "text":
        return "'" + value.replace("'", "''") + "'"
    return value if kind == "number" else _keyword(value, random)


def _keyword(word: str, random: Random) -> str:
    return random.choice([word.upper(), word.lower(), word.title()])


def _space(random: Random, usual: str = " ") -> str:
    return random.choice([usual, usual, "  ", "\n", "\t"])
