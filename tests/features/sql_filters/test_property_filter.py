"""Where-expressions: what passes, what is rejected and where the caret stands."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from minimq.features.sql_filters.property_filter import PropertyFilter
from minimq_common.errors import InvalidArgument
from support.cases import for_each
from support.where_trees import NAMES, TEXTS, Tree, evaluate, render, trees

ORDER: Mapping[str, str] = MappingProxyType(
    {
        "region": "eu",
        "amount": "12.50",
        "count": "7",
        "negative": "-3",
        "big": "9007199254740993",
        "huge": "1e9999",
        "huger": "1e10000",
        "day": "2024-06-01",
        "urgent": "True",
        "empty": "",
        "padded": " 7",
        "infinite": "inf",
        "grouped": "1_000",
        "arabic": "\u0663",
        "quote": "it's",
        "trace-id": "t.1",
        "app.version": "1.2.3",
        "größe": "xl",
        "in": "side",
        'say "so"': "so",
        "TAGS": "a property",
    }
)
TAG = "paid"
UNKNOWN = None


def answer(expression: str, properties: Mapping[str, str], tag: str | None) -> bool | None:
    """Return what an expression is for a message: a filter passes what is true, so NOT tells false from unknown."""
    if PropertyFilter(expression).matches(properties, tag):
        return True
    return False if PropertyFilter(f"NOT ({expression})").matches(properties, tag) else UNKNOWN


@for_each(
    ("expression", "expected"),
    [
        # Text.
        ("region = 'eu'", True),
        ("region = 'EU'", False),
        ("region <> 'us'", True),
        ("region != 'eu'", False),
        ("quote = 'it''s'", True),
        ("empty = ''", True),
        ("region = ''", False),
        ("count = '7'", True),
        ("count = '7.0'", False),
        ("region > 'de'", True),
        ("region <= 'eu'", True),
        ("day >= '2024-06-01' AND day < '2024-07-01'", True),
        ("day BETWEEN '2024-06-02' AND '2024-06-30'", False),
        # Numbers.
        ("amount = 12.5", True),
        ("amount <> 12.50", False),
        ("amount = 1.25e1", True),
        ("amount = 125E-1", True),
        ("amount > 9", True),
        ("amount > 12.5", False),
        ("amount >= 12.5", True),
        ("amount < 12.5", False),
        ("amount <= 12.5", True),
        ("amount>-5", True),
        ("negative = -3", True),
        ("negative < +.5", True),
        ("count = 7.", True),
        ("big = 9007199254740993", True),
        ("big = 9007199254740992", False),
        ("huge > 9e9998", True),
        ("huger > 0", UNKNOWN),
        ("count BETWEEN 7 AND 7", True),
        ("count BETWEEN 8 AND 9", False),
        ("count NOT BETWEEN 8 AND 9", True),
        ("count BETWEEN 9 AND 5", False),
        ("count IN (1, 7.0)", True),
        ("count NOT IN (1, 7.0)", False),
        # What is no number is neither equal nor unequal to one.
        ("region = 5", UNKNOWN),
        ("region <> 5", UNKNOWN),
        ("region > 5", UNKNOWN),
        ("region IN (5)", UNKNOWN),
        ("region NOT BETWEEN 1 AND 2", UNKNOWN),
        ("empty = 0", UNKNOWN),
        ("padded = 7", UNKNOWN),
        ("infinite > 5", UNKNOWN),
        ("grouped = 1000", UNKNOWN),
        ("arabic = 3", UNKNOWN),
        # Truth.
        ("urgent = TRUE", True),
        ("urgent = false", False),
        ("urgent <> FALSE", True),
        ("region = TRUE", UNKNOWN),
        ("TRUE", True),
        ("false", False),
        ("NOT TRUE", False),
        # Lists and parts.
        ("region IN ('us', 'eu')", True),
        ("region IN ('us')", False),
        ("region NOT IN ('us')", True),
        ("region NOT IN ('us', 'eu')", False),
        ("quote CONTAINS 't'''", True),
        ("quote NOT CONTAINS 'x'", True),
        ("trace-id STARTSWITH 't.'", True),
        ("trace-id NOT STARTSWITH 't.'", False),
        ("trace-id ENDSWITH '.2'", False),
        ("trace-id NOT ENDSWITH '.2'", True),
        ("empty STARTSWITH ''", True),
        # What is not there.
        ("nowhere IS NULL", True),
        ("nowhere IS NOT NULL", False),
        ("region IS NULL", False),
        ("region IS NOT NULL", True),
        ("empty IS NULL", False),
        ("nowhere = 'x'", UNKNOWN),
        ("nowhere <> 'x'", UNKNOWN),
        ("NOT nowhere = 'x'", UNKNOWN),
        ("nowhere > 1", UNKNOWN),
        ("nowhere NOT IN ('x')", UNKNOWN),
        ("nowhere NOT BETWEEN 1 AND 2", UNKNOWN),
        ("nowhere NOT CONTAINS 'x'", UNKNOWN),
        ("nowhere = 'x' OR region = 'eu'", True),
        ("nowhere = 'x' OR region = 'us'", UNKNOWN),
        ("nowhere = 'x' AND region = 'eu'", UNKNOWN),
        ("nowhere = 'x' AND region = 'us'", False),
        ("nowhere = 'x' OR NOT nowhere = 'x'", UNKNOWN),
        # How it is joined.
        ("FALSE AND FALSE OR TRUE", True),
        ("FALSE AND (FALSE OR TRUE)", False),
        ("TRUE OR TRUE AND FALSE", True),
        ("NOT FALSE AND FALSE", False),
        ("NOT (FALSE AND FALSE)", True),
        ("NOT NOT NOT FALSE", True),
        ("NOT region = 'us'", True),
        ("count BETWEEN 1 AND 9 AND region = 'us'", False),
        ("((region = 'eu'))", True),
        # How it is written.
        ("region='eu'and(count>=7)", True),
        ("region\n=\t'eu'\n  Or false", True),
        ("count not between 8 and 9", True),
        ("nowhere is null", True),
        ("quote ContainS 't'", True),
        ("REGION = 'eu'", UNKNOWN),
        ("app.version = '1.2.3'", True),
        ("$id IS NULL", True),
        ("\"größe\" = 'xl'", True),
        ("\"in\" = 'side'", True),
        ('"say ""so""" = \'so\'', True),
        ("inner IS NULL", True),
        # The tag.
        ("TAGS = 'paid'", True),
        ("TAGS IN ('refunded', 'void')", False),
        ("TAGS IS NOT NULL", True),
        ("tags IS NULL", True),
        ("\"TAGS\" = 'a property'", True),
    ],
)
def test_what_an_expression_is_for_an_order(expression: str, expected: bool | None) -> None:
    assert answer(expression, ORDER, TAG) is expected


@for_each(
    ("expression", "expected"),
    [
        ("TAGS = 'paid'", UNKNOWN),
        ("TAGS <> 'paid'", UNKNOWN),
        ("TAGS IS NULL", True),
        ("TAGS IS NOT NULL", False),
        ("region IS NULL", True),
    ],
)
def test_a_message_with_neither_tag_nor_properties(expression: str, expected: bool | None) -> None:
    assert answer(expression, {}, None) is expected


# ---- Any expression -----------------------------------------------------------------------------


@given(
    trees,
    st.fixed_dictionaries({}, optional={name: st.sampled_from(TEXTS) for name in NAMES if name is not None}),
    st.none() | st.sampled_from(TEXTS),
    st.integers(0, 1 << 32),
)
def test_any_expression_is_what_three_valued_logic_says(
    tree: Tree, properties: dict[str, str], tag: str | None, seed: int
) -> None:
    text = render(tree, Random(seed))

    assert answer(text, properties, tag) is evaluate(tree, properties, tag)


WORDS = [*"()=,<>'\"", "<>", "!=", "<=", ">=", "AND", "or", "NOT", "IS", "NULL", "IN", "BETWEEN", "CONTAINS", "TRUE"]
WORDS += ["STARTSWITH", "ENDSWITH", "a", "TAGS", "'x'", "'10'", "5", "-1.5e3", "1e99999", "5.5.5", '"b c"', "ü", "\n"]


@given(st.text(max_size=60) | st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join))
@example("a = 1e9999 OR a = -1e-9999")
@example("a IN (0, -0, 0.0, 1e-9999)")
@example("'" * 4095)
@example('a = "' + '"' * 4000)
@example("5" * 4096)
@example("\ud800")
def test_whatever_is_written_is_an_expression_or_rejected(text: str) -> None:
    try:
        wanted = PropertyFilter(text)
    except InvalidArgument:
        return
    assert wanted.matches({"a": "5", "b c": "x"}, None) in {True, False}
    assert wanted.matches({"a": "9" * 30_000 + "x"}, "x") in {True, False}


# ---- What is rejected ----------------------------------------------------------------------------


@for_each(
    ("marked", "problem"),  # the place is behind the mark
    [
        ("region = 'eu' AND amount >^", "expected a value after '>' but found the end"),
        ("amount >^   ", "expected a value after '>' but found the end"),
        ("region = ^eu", "expected a value after '=' but found the name eu; put text in single quotes"),
        ('region = ^"eu"', "expected a value after '=' but found the name \"eu\"; put text in single quotes"),
        ("a =^= 1", "expected a value after '=' but found '='"),
        ("a = ^NULL", "expected a value after '=' but found 'NULL'"),
        ("a > ^TRUE", "expected text in single quotes or a number after '>' but found 'TRUE'"),
        ("a > ^'10'", "numbers are compared by size without quotes: write 10"),
        ("a BETWEEN 'a' AND ^'1e3'", "numbers are compared by size without quotes: write 1e3"),
        ("a BETWEEN 1 AND ^'x'", "expected a number after 'AND' but found the text 'x'"),
        ("a BETWEEN 1^", "expected AND after the number 1 but found the end"),
        ("a IN ^'x'", "expected '(' after 'IN' but found the text 'x'"),
        ("a IN (^)", "expected a value after '(' but found ')'"),
        ("a IN ('x', ^5)", "expected text in single quotes after ',' but found the number 5"),
        ("a IN (5^", "expected ',' or ')' after the number 5 but found the end"),
        ("a CONTAINS ^5", "expected text in single quotes after 'CONTAINS' but found the number 5"),
        ("a IS ^5", "expected NULL or NOT NULL after 'IS' but found the number 5"),
        ("a IS NOT ^TRUE", "expected NULL after 'NOT' but found 'TRUE'"),
        ("a NOT ^= 5", "expected IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH after 'NOT' but found '='"),
        (
            "region ^LIKE 'e%'",
            "expected a comparison (=, <>, <, <=, >, >=, IS, NOT, IN, BETWEEN, CONTAINS, STARTSWITH or ENDSWITH) "
            "after the name region but found the name LIKE",
        ),
        ("^5 < a", "expected a condition (it begins with the name of a property) but found the number 5"),
        (
            "a = 1 AND ^OR b = 2",
            "expected a condition (it begins with the name of a property) after 'AND' but found 'OR'",
        ),
        ("(^)", "expected a condition (it begins with the name of a property) after '(' but found ')'"),
        ("a = 1 ^b = 2", "expected AND, OR or the end after the number 1 but found the name b"),
        ("a = 1^)", "expected AND, OR or the end after the number 1 but found ')'"),
        ("(a = 1^", "expected AND, OR or ')' after the number 1 but found the end"),
        ("a = ^'x", "this text has no closing single quote"),
        ("a = ^'it''", "this text has no closing single quote"),
        ('^"a = 1', "this name has no closing double quote"),
        ("a = ^1.2.3", "1.2.3 is no number; put text in single quotes"),
        ("a > ^2024-06-01", "2024-06-01 is no number; put text in single quotes"),
        ("a < ^1e12345", "1e12345 is no number; put text in single quotes"),
        (f"a = ^{'5' * 50}x", f"{'5' * 40}... is no number; put text in single quotes"),
        (
            "gr^öße = 1",
            "unexpected character 'ö'; put a name with such a character in double quotes, text in single quotes",
        ),
    ],
)
def test_what_is_wrong_is_shown_with_its_place(marked: str, problem: str) -> None:
    text, place = marked.replace("^", ""), marked.index("^")
    with pytest.raises(InvalidArgument) as raised:
        PropertyFilter(text)

    assert raised.value.message == f"where: {problem}, at character {place + 1}"


# ---- What a filter tells of itself --------------------------------------------------------------


def test_a_filter_names_the_properties_that_it_looks_at() -> None:
    text = "a = 1 AND (b IS NULL OR NOT \"c d\" IN ('x')) AND a < 5 AND e BETWEEN 1 AND 2 AND TAGS = 'x' AND TRUE"
    wanted = PropertyFilter(text)
    assert wanted.names == {"a", "b", "c d", "e"}
    assert PropertyFilter("TAGS = 'x'").names == frozenset()
    assert PropertyFilter("\"TAGS\" = 'x'").names == {"TAGS"}
    assert PropertyFilter("KEYS = 'x'").names == frozenset()
    assert PropertyFilter("\"KEYS\" = 'x'").names == {"KEYS"}
    assert [PropertyFilter(text).reads_keys for text in ("KEYS = 'x'", "\"KEYS\" = 'x'", "TAGS = 'x'")] == [
        True,
        False,
        False,
    ]


@for_each(
    ("text", "keys", "is_wanted"),
    [
        ("KEYS = 'o-1'", ["o-1", "o-2"], True),
        ("KEYS = 'o-1'", ["o-3"], False),
        ("KEYS = 'o-1'", [], False),
        ("KEYS <> 'o-1'", ["o-3", "o-4"], True),
        ("KEYS <> 'o-1'", ["o-1", "o-2"], False),
        ("KEYS <> 'o-1'", [], False),
        ("NOT KEYS IN ('a', 'b')", ["c"], True),
        ("KEYS IN ('a', 'b')", ["c", "b"], True),
        ("KEYS STARTSWITH 'o-'", ["x", "o-9"], True),
        ("KEYS > 10", ["x", "11"], True),
        ("NOT KEYS > 10", ["x", "9"], False),
        ("KEYS IS NULL", [], True),
        ("KEYS IS NOT NULL", ["a"], True),
        ("KEYS IS NULL", ["a"], False),
    ],
)
def test_a_condition_about_the_keys_is_about_any_of_them(text: str, keys: list[str], is_wanted: bool) -> None:
    assert PropertyFilter(text).matches({"KEYS": "a property"}, None, keys) is is_wanted
