"""Rows of pyarrow, Polars and pandas in all types in which these hold text, bytes, lists and maps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from minimq.features.tables.destinations import Destinations
from minimq.features.tables.row_columns import checked_rows
from minimq_common.errors import InvalidArgument
from support.cases import for_each


def sent(rows: object) -> list[dict[str, Any]]:
    """Return the rows as they become messages."""
    found = list[dict[str, Any]]()
    for batch in checked_rows(rows, has_topic=True):
        batch.validate(full=True)
        for _, part in Destinations("t", lambda _: []).split(batch):
            part.validate(full=True)
            found += part.to_pylist()
    return found


def table(**columns: pa.Array) -> pa.Table:
    rows = len(next(iter(columns.values())))
    return pa.table({"body": ["x"] * rows, **columns})


NAMES = ["a", None, "b" * 30]


@for_each(
    "column",
    [
        pa.array(NAMES, pa.string()),
        pa.array(NAMES, pa.large_string()),
        pa.array(NAMES, pa.string_view()),
        pa.array(NAMES, pa.string()).dictionary_encode(),
        pa.array(NAMES, pa.large_string()).dictionary_encode(),
        pl.Series(NAMES, dtype=pl.Categorical).to_frame("tag").to_arrow(compat_level=pl.CompatLevel.newest())["tag"],
        pl.Series(NAMES, dtype=pl.Enum(["a", "b" * 30])).to_frame("tag").to_arrow()["tag"],
    ],
)
def test_text_of_any_type(column: pa.Array) -> None:
    assert [row["tag"] for row in sent(table(tag=column))] == NAMES
    assert [row["tag"] for row in sent(table(tag=column).slice(1))] == NAMES[1:]


LISTS = [["a", "b" * 30], None, [], ["c"]]


@for_each("make", [pa.list_, pa.large_list])
@for_each("text", [pa.string(), pa.large_string(), pa.string_view()])
def test_keys_of_any_type(make: Callable[[pa.DataType], pa.DataType], text: pa.DataType) -> None:
    column = pa.array(LISTS, make(text))
    assert [row["keys"] for row in sent(table(keys=column))] == LISTS
    assert [row["keys"] for row in sent(table(keys=column).slice(2))] == LISTS[2:]


@for_each("make", [pa.list_, pa.large_list])
@for_each("value", [pa.string(), pa.string_view(), pa.binary(), pa.large_binary()])
@for_each("name", ["properties", "headers"])
def test_structures_are_properties(name: str, value: pa.DataType, make: Callable[[pa.DataType], pa.DataType]) -> None:
    pairs = [[("region", "eu"), ("n", "1")], None, [], [("n", "2")]]
    kind = make(pa.struct([("of", pa.string()), ("is", value)]))
    given = [None if row is None else [{"of": name, "is": text} for name, text in row] for row in pairs]
    found = sent(table(**{name: pa.array(given, kind)}))
    assert [row["properties"] for row in found] == [row or [] for row in pairs]


def test_a_map_that_has_a_name_twice_is_rejected() -> None:
    maps = pa.array([[("a", "1")], None, [("a", "1"), ("b", "2"), ("a", "3")]], pa.map_(pa.string(), pa.string()))
    with pytest.raises(InvalidArgument, match="column 'properties' has 'a' twice in a row"):
        sent(table(properties=maps))
    assert [row["properties"] for row in sent(table(properties=maps).slice(0, 2))] == [[("a", "1")], None]


def test_what_a_filter_of_pandas_leaves_can_be_sent() -> None:
    frame = pd.DataFrame({"body": ["a", "b", "c"], "tag": ["x", "y", "x"]})
    assert [row["body"] for row in sent(frame[frame.tag == "x"])] == ["a", "c"]
    with pytest.raises(InvalidArgument, match="column 'number' cannot be sent"):
        sent(frame.assign(number=1).set_index("number"))  # this index somebody has named


@for_each(
    ("rows", "text"),
    [
        (pl.Series("body", ["a"]), "rows are no table: "),
        (pd.DataFrame({"body": [b"a", 1]}), "rows are no table: "),
        (table(queue_id=pa.array([1 << 63], pa.uint64())), "column 'queue_id' cannot be sent: Integer value"),
        (pl.DataFrame({"body": ["a"]}).lazy(), "rows are LazyFrame: give "),
    ],
)
def test_what_is_no_table_of_rows_is_rejected(rows: object, text: str) -> None:
    with pytest.raises(InvalidArgument, match=text):
        sent(rows)
