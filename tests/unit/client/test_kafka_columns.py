"""The columns of Spark's Kafka sink mean what they mean there."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from minimq.sending.arrow.kafka_columns import renamed
from minimq_common.errors import InvalidArgument

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(*rows: Sequence[tuple[str | None, bytes | None]] | None) -> pa.Array:
    return pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS)


def refusal(**columns: pa.Array) -> str:
    with pytest.raises(InvalidArgument) as caught:
        renamed(columns)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_key_selects_the_queue_and_is_what_the_message_is_found_by() -> None:
    for kind in (pa.string(), pa.binary(), pa.large_binary()):
        found = renamed({"value": pa.array(["a", "b"]), "key": pa.array(["k-1", None], kind)})
        assert found.keys() == {"body", "keys", "sharding_key"}
        assert found["keys"].to_pylist() == found["sharding_key"].to_pylist() == ["k-1", None]
        assert found["keys"].type == pa.string()
    assert refusal(key=pa.array([b"\xff"])).startswith("column 'key' is no text in UTF-8 in a row, but b'\\xff'")


def test_headers_are_properties() -> None:
    given = headers([("a", b"0")], [("region", b"eu"), ("n", b"1")], None, [], [("region", b"us")])
    for part, wanted in (
        (given, [[("a", "0")], [("region", "eu"), ("n", "1")], [], [], [("region", "us")]]),
        (given[1:3], [[("region", "eu"), ("n", "1")], []]),
        (given[3:4], [[]]),
    ):
        assert renamed({"headers": part})["properties"].to_pylist() == wanted
    as_map = pa.array([[("a", "1")]], pa.map_(pa.string(), pa.string()))
    assert renamed({"headers": as_map})["properties"] is as_map


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ([("a", b"1"), ("b", b"2"), ("a", b"3")], "column 'headers' has 'a' twice in a row: properties have each name"),
        ([(None, b"1")], "column 'headers' has an entry without a name in a row"),
        ([("a", b"\xff")], "column 'headers' is no text in UTF-8 in a row, but b'\\xff'"),
    ],
)
def test_headers_that_are_no_properties_are_refused(row: list[tuple[str | None, bytes | None]], text: str) -> None:
    assert refusal(headers=headers([("a", b"0")], [("b", b"0")], row)).startswith(text)
