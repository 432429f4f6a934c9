"""Batches that are made of Arrow columns are those that are made of messages."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
from hypothesis import example, given, settings
from hypothesis import strategies as st

from minimq import Message
from minimq.features.tables.row_batch import MAX_ROWS, cut, to_batch
from minimq_common.batch import builder as batch_builder
from minimq_common.batch.compression import Compression
from minimq_common.batch.records import RecordBatch

BORN_MS, PRODUCER, SEQUENCE, UNSETTLED = 1_700_000_000_123, 0xFEDCBA9876543210, 7, 3
MAX_BYTES = 1 << 20

STRINGS = pa.list_(pa.string())
PROPERTIES = pa.map_(pa.string(), pa.string())

text = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=8)
name = text.filter(bool)
messages = st.builds(
    Message,
    topic=st.just("orders"),
    body=st.binary(min_size=1, max_size=40),
    tag=st.none() | name,
    keys=st.lists(name, max_size=3),
    properties=st.dictionaries(name, text, max_size=3),
)
PLAIN = Message("orders", b"x")


def rows_of(sent: Sequence[Message], *, nulls: bool = False, large: bool = False) -> pa.RecordBatch:
    """Return messages as a data frame would have them; with `nulls` for what is empty."""
    lists = [list(message.keys) for message in sent]
    maps = [list(message.properties.items()) for message in sent]
    rows = pa.RecordBatch.from_pydict(
        {
            "body": pa.array([message.body for message in sent], pa.large_binary() if large else pa.binary()),
            "tag": pa.array([message.tag for message in sent], pa.large_string() if large else pa.string()),
            "keys": pa.array(
                [keys or (None if nulls else []) for keys in lists], pa.list_(pa.large_string()) if large else STRINGS
            ),
            "properties": pa.array(
                [entries or (None if nulls else []) for entries in maps],
                pa.map_(pa.large_string(), pa.large_string()) if large else PROPERTIES,
            ),
        }
    )
    rows.validate(full=True)
    return rows


def encoded(rows: pa.RecordBatch, compression: Compression | None = None) -> bytes:
    return to_batch(rows, MAX_BYTES, compression).build(BORN_MS, PRODUCER, SEQUENCE, UNSETTLED)


def expected(sent: Sequence[Message], compression: Compression | None = None) -> bytes:
    builder = batch_builder.BatchBuilder(MAX_BYTES, compression)
    builder.add(sent)
    return builder.build(BORN_MS, PRODUCER, SEQUENCE, UNSETTLED)


@settings(max_examples=150, deadline=None)
@given(
    sent=st.lists(messages, min_size=1, max_size=30),
    before=st.lists(messages, max_size=3),
    after=st.lists(messages, max_size=3),
    nulls=st.booleans(),
    large=st.booleans(),
)
@example(sent=[PLAIN], before=[], after=[], nulls=True, large=False)
@example(
    sent=[Message("orders", b"x", keys=["a"]), Message("orders", b"y", keys=["b"])],
    before=[PLAIN],
    after=[],
    nulls=False,
    large=False,
)
def test_columns_become_the_same_batch_as_messages(
    sent: list[Message], before: list[Message], after: list[Message], nulls: bool, large: bool
) -> None:
    rows = rows_of([*before, *sent, *after], nulls=nulls, large=large).slice(len(before), len(sent))
    assert encoded(rows) == expected(sent)


@given(sent=st.lists(messages, min_size=20, max_size=60))
@settings(max_examples=20, deadline=None)
def test_batches_are_compressed_like_those_of_messages(sent: list[Message]) -> None:
    always = Compression(above_bytes=1)
    assert encoded(rows_of(sent), always) == expected(sent, always)


def test_a_null_may_hide_entries() -> None:
    hidden = pa.MapArray.from_arrays(
        pa.array([0, 1, 2, 3], pa.int32()), pa.array(["a", "b", "c"]), pa.array(["1", "2", "3"]),
        mask=pa.array([False, True, False]),
    )  # fmt: skip
    rows = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * 3), "properties": hidden})
    opened = RecordBatch(encoded(rows))
    assert [opened.properties(index) for index in range(3)] == [{"a": "1"}, {}, {"c": "3"}]


# ---- What is rejected -----------------------------------------------------------------------------


# ---- How rows are cut ----------------------------------------------------------------------------


def test_rows_are_cut_by_size() -> None:
    rows = rows_of([Message("orders", bytes(size), keys=["k" * size]) for size in range(1, 400)])
    parts = list(cut(rows, 5000))
    assert pa.Table.from_batches(parts).combine_chunks() == pa.Table.from_batches([rows])
    assert all(part.nbytes <= 5000 for part in parts)
    assert len(parts) < 2.5 * rows.nbytes / 5000
    assert max(len(encoded(part)) for part in parts) < 5000 + 500


def test_a_row_is_never_cut_and_batches_have_a_limit_of_rows() -> None:
    large = rows_of([Message("orders", bytes(10_000)), PLAIN, Message("orders", bytes(10_000))])
    assert [part.num_rows for part in cut(large, 5000)] == [1, 1, 1]
    many = pa.RecordBatch.from_pydict({"body": pa.array([b"x"] * (2 * MAX_ROWS + 1))})
    assert max(part.num_rows for part in cut(many, 1 << 30)) <= MAX_ROWS
    [whole] = cut(many.slice(0, MAX_ROWS), 1 << 30)
    assert whole.num_rows == MAX_ROWS
