"""The columns of Spark's Kafka sink mean what they mean there."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.features.tables.row_columns import renamed
from minimq.kafka import bytes_of, headers_of, properties_of
from minimq_common.errors import InvalidArgument

HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))


def headers(*rows: Sequence[tuple[str | None, bytes | None]] | None) -> pa.Array:
    return pa.array([None if row is None else [{"key": k, "value": v} for k, v in row] for row in rows], HEADERS)


def rejection(**columns: pa.Array) -> str:
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


def test_keys_of_any_bytes_come_back() -> None:
    keys = [
        b"k",
        None,
        b"",
        b"\0\1",
        b"\xff",
        uuid.uuid4().bytes,
        struct.pack(">q", 17),
        b"base64:x",
        "ü".encode(),
        b"null:",
    ]
    for column in (
        pa.array(keys, pa.binary()),
        pa.array(keys, pa.large_binary()),
        pa.array([b"x", *keys], pa.binary())[1:],
    ):
        texts = renamed({"key": column})["keys"].to_pylist()
        assert [None if text is None else bytes_of(text) for text in texts] == keys
        assert texts[0] == "k"


def test_headers_of_any_bytes_and_repeated_names_come_back() -> None:
    rows: list[list[tuple[str, bytes | None]]] = [
        [("a", b"1"), ("b", b"\0"), ("a", b"\xff"), ("a", None)],
        [],
        [("a#2", b"x"), ("", b""), ("c", b"base64:")],
    ]
    for rows_given, wanted in ((headers(*rows), rows), (headers([("z", b"0")], *rows)[1:], rows)):
        found = renamed({"headers": rows_given})["properties"].to_pylist()
        assert [headers_of(dict(row)) for row in found] == wanted
        assert dict(found[0]) == properties_of(rows[0])


@given(st.lists(st.tuples(st.sampled_from(["a", "b", "a#2", "#1"]), st.none() | st.binary(max_size=4))))
def test_what_is_written_as_text_comes_back(rows: list[tuple[str, bytes | None]]) -> None:
    properties = properties_of(rows)
    assert all("\0" not in text for text in properties.values())
    assert headers_of(properties) == rows


def test_what_is_no_base64_is_an_error() -> None:
    with pytest.raises(InvalidArgument, match="'base64:=' is no key or header of Kafka"):
        bytes_of("base64:=")


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


@pytest.mark.parametrize(("row", "text"), [([(None, b"1")], "column 'headers' has an entry without a name in a row")])
def test_headers_that_are_no_properties_are_rejected(row: list[tuple[str | None, bytes | None]], text: str) -> None:
    assert rejection(headers=headers([("a", b"0")], [("b", b"0")], row)).startswith(text)
