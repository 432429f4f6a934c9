"""Both ways from stored batches to Arrow give what plain decoding gives."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from minimq import Message, MessageQueue
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.tables.columns import MAX_ROWS, MESSAGE_SCHEMA, SMALL_BATCH, ArrowColumns, chosen_columns
from minimq.features.tables.plan import newest_of_each_key
from minimq_common.batch import builder as batch_builder
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import Section
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch
from support.arrow_columns import by_columns
from support.cases import for_each
from support.compacted_batches import compacted_of
from support.hostile_batches import offsets, raw_batch, sections

QUEUE = MessageQueue("orders", "broker-ä", 3)
BORN_MS, STORED_MS = 1_700_000_000_123, 1_700_000_000_999
PRODUCER, SEQUENCE = 0xFEDCBA9876543210, 7

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


#: Whatever its size, where it becomes smaller.
ALWAYS = Compression(above_bytes=1)


def encoded(
    sent: Sequence[Message], born_ms: int | Sequence[int] = BORN_MS, compression: Compression | None = None
) -> bytes:
    return batch_builder.encode(sent, born_ms, PRODUCER, SEQUENCE, 1 << 20, compression)


def received(data: bytes, count: int, base_offset: int = 1000) -> ReceivedBatch:
    return ReceivedBatch(QUEUE, EncodedRecords(base_offset, STORED_MS, 0, count, data))


def stored(
    sent: Sequence[Message],
    born_ms: int | Sequence[int] = BORN_MS,
    base_offset: int = 1000,
    compression: Compression | None = None,
) -> ReceivedBatch:
    return received(encoded(sent, born_ms, compression), len(sent), base_offset)


def moment(ms: int) -> datetime:
    return datetime.fromtimestamp(0, UTC) + timedelta(milliseconds=ms)


def expected(batch: ReceivedBatch) -> list[dict[str, Any]]:
    return [
        {
            "topic": message.topic,
            "broker_name": message.queue.broker_name,
            "queue_id": message.queue.queue_id,
            "offset": message.queue_offset,
            "body": message.body,
            "tag": message.tag,
            "keys": list(message.keys),
            "properties": list(message.properties.items()),
            "born_timestamp": moment(batch.records.born_ms(message.index)),
            "store_timestamp": moment(batch.stored_ms_of(message.index)),
            "message_id": message.message_id,
        }
        for message in batch.messages(0)
    ]


@settings(deadline=None)  # the machine may be busy
@given(
    sent=st.lists(st.tuples(messages, st.integers(0, 70_000)), min_size=1, max_size=40),
    compression=st.sampled_from([None, ALWAYS]),
)
@example(sent=[(Message("orders", b"x"), 0)], compression=None)
@example(sent=[(Message("orders", b"x", keys=["a"]), 0), (Message("orders", b"y", keys=["b"]), 300)], compression=None)
@example(sent=[(Message("orders", b"x", keys=[]), 0), (Message("orders", b"y", keys=["b", "é"]), 1)], compression=None)
@example(sent=[(Message("orders", b"x", tag=f"tag-{n}"), 0) for n in range(300)], compression=None)
@example(sent=[(Message("orders", b"x", tag=f"tag-{n}"), n % 257) for n in range(301)], compression=ALWAYS)
def test_columns_and_rows_equal_plain_decoding(
    sent: list[tuple[Message, int]], compression: Compression | None
) -> None:
    batch = stored([message for message, _ in sent], [BORN_MS + later for _, later in sent], compression=compression)
    columns = ArrowColumns(MESSAGE_SCHEMA)

    by_column, by_row = by_columns(columns, batch), columns.from_messages(batch.messages(0))

    by_column.validate(full=True)
    assert by_column.schema == by_row.schema == columns.schema
    assert by_column.to_pylist() == by_row.to_pylist() == expected(batch)
    plain = [(m.body, m.tag, list(m.keys), list(m.properties.items())) for m, _ in sent]
    assert [(r["body"], r["tag"], r["keys"], r["properties"]) for r in by_column.to_pylist()] == plain


@pytest.mark.parametrize("kind", ["of one byte", "of one key", "of all"])
def test_a_batch_of_very_many_records_is_converted_in_parts(kind: str) -> None:
    """Records that are all alike take no room in a compressed batch, and far more in columns."""
    count, start, end = 2 * MAX_ROWS + 900, 500, 2 * MAX_ROWS + 700
    every: dict[str, dict[str, Any]] = {
        "of one byte": {},
        "of one key": {"keys": ["k"]},
        "of all": {"tag": "a", "keys": ["k", "l"], "properties": {"p": "q"}},
    }
    sent = [
        Message("orders", b"x" if kind == "of one byte" else b"%d" % n, **every[kind] if n % 3 else {})
        for n in range(count)
    ]
    batch = stored(sent, [BORN_MS + n % 300 for n in range(count)], compression=ALWAYS)
    first, near = (
        batch.base_offset,
        {0, MAX_ROWS - start - 1, MAX_ROWS - start, 2 * MAX_ROWS - start, end - start - 1},
    )
    parts = list(ArrowColumns(MESSAGE_SCHEMA).convert([batch], first + start, first + end))
    assert [part.num_rows for part in parts] == [MAX_ROWS - start, MAX_ROWS, 700]
    rows = pa.Table.from_batches(parts)
    rows.validate(full=True)
    by_row = ArrowColumns(MESSAGE_SCHEMA).from_messages([batch.messages(0)[start + index] for index in sorted(near)])
    assert rows.take(sorted(near)).to_pylist() == by_row.to_pylist()
    for name, wanted in (("offset", range(first + start, first + end)), ("body", [m.body for m in sent[start:end]])):
        assert rows.column(name).to_pylist() == list(wanted)
    if kind == "of all":
        tagged = list(ArrowColumns(MESSAGE_SCHEMA, frozenset({"a"})).convert([batch], first + start, first + end))
        assert sum(part.num_rows for part in tagged) == sum(n % 3 > 0 for n in range(start, end))


@pytest.mark.parametrize(("compression", "codec"), [(None, 0), (ALWAYS, 1)])
def test_bodies_are_not_copied(compression: Compression | None, codec: int) -> None:
    batch = stored([Message("orders", bytes([n]) * 100) for n in range(50)], compression=compression)
    assert batch.records.header.codec == codec
    array = by_columns(ArrowColumns(chosen_columns(["body"])), batch).column(0)
    assert array.buffers()[2].address == pa.py_buffer(batch.records.section(Section.BODIES)).address
    assert array.buffers()[1].address % 4 == 0


def test_only_records_with_a_wanted_tag_are_taken() -> None:
    sizes = (5, SMALL_BATCH + 50, 3, 2000, SMALL_BATCH)
    batches: list[ReceivedBatch] = []
    wanted: list[int] = []
    for size in sizes:
        first = batches[-1].end_offset if batches else 0
        tags = ["no" if size == SMALL_BATCH else ("paid", "open", None)[n % 3] for n in range(size)]
        batches.append(stored([Message("orders", b"x", tag=tag) for tag in tags], base_offset=first))
        wanted += [first + n for n, tag in enumerate(tags) if tag == "paid" and 2 <= first + n < 2100]
    columns = ArrowColumns(chosen_columns(["offset"]), frozenset({"paid", "void"}))
    made = list(columns.convert(batches, 2, 2100))
    assert [row["offset"] for part in made for row in part.to_pylist()] == wanted
    assert list(columns.convert(batches[-1:], 0, 1 << 40)) == []


@settings(deadline=None)  # the machine may be busy
@given(
    sizes=st.lists(st.integers(1, 3 * SMALL_BATCH), min_size=1, max_size=8),
    cut=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_range_is_cut_out_of_batches_of_all_sizes(sizes: list[int], cut: tuple[float, float]) -> None:
    total = sum(sizes)
    start, end = sorted(1000 + round(part * total) for part in cut)
    assume(start < end)
    batches, offset = [], 1000
    for size in sizes:
        if offset < end and offset + size > start:
            batches.append(stored([Message("orders", b"%d" % (offset + n)) for n in range(size)], base_offset=offset))
        offset += size

    made = list(ArrowColumns(MESSAGE_SCHEMA).convert(batches, start, end))

    rows = [row for part in made for row in part.to_pylist()]
    assert [row["offset"] for row in rows] == list(range(start, end))
    assert [row["body"] for row in rows] == [b"%d" % offset for offset in range(start, end)]
    assert all(part.num_rows for part in made)


def forged(data: bytes, section: Section, content: bytes, *, is_compressed: bool) -> bytes:
    """Return a batch whose checksum is right, with another section in place of one of its own."""
    opened = RecordBatch(data)
    found = {which: bytes(opened.section(which)) for which in Section}
    return raw_batch(found | {section: content}, len(opened), is_compressed=is_compressed, largest_body=4)


@for_each("compression", [None, ALWAYS])
@for_each(
    ("section", "content"),
    [
        (Section.BODY_OFFSETS, b"\xff\xff\xff\x7f" * 41),
        (Section.BODY_OFFSETS, b""),
        (Section.BODIES, b"x"),
        (Section.KEYS, b"\xff" * 100),
        (Section.TAG_CODES, b"\x09" * 40),
        (Section.TAG_DICTIONARY, b"\xff\xfe"),
        (Section.BORN, b"\x00" * 120),
        (Section.VALUES, b""),
        (Section.PROPERTY_OFFSETS, b"\x00" * 8),
        (Section.NAME_OFFSETS, b""),
    ],
)
def test_a_batch_that_contradicts_itself_is_an_error_and_not_a_crash(
    section: Section, content: bytes, compression: Compression | None
) -> None:
    sent = [Message("orders", b"body", tag="ab"[n % 2], keys=["key"], properties={"a": "b"}) for n in range(40)]
    honest = encoded(sent, [BORN_MS + n for n in range(40)], compression)
    data = forged(honest, section, content, is_compressed=compression is not None)
    with pytest.raises(CorruptBatch, match=r"queue orders/broker-ä/3 .*at offset 1000|at offset 1000 of queue orders"):
        by_columns(ArrowColumns(MESSAGE_SCHEMA), received(data, 40))


@settings(max_examples=300)
@given(sections, st.integers(1, 5), st.booleans())
def test_whatever_the_columns_of_a_batch_are_spark_gets_all_rows_or_a_named_error(
    found: dict[Section, bytes], count: int, is_compressed: bool
) -> None:
    honest = {Section.BODY_OFFSETS: offsets(*range(count + 1)), Section.BODIES: b"x" * count}
    data = raw_batch(honest | found, count, is_compressed=is_compressed)
    with suppress(CorruptBatch):
        rows = by_columns(ArrowColumns(MESSAGE_SCHEMA), received(data, count))
        rows.validate(full=True)
        assert rows.num_rows == count
        assert len(rows.to_pylist()) == count


def test_keys_that_would_take_far_more_than_their_text_are_rejected() -> None:
    count = 2 * SMALL_BATCH
    keys = 1 << 20
    found = {
        Section.BODY_OFFSETS: offsets(*range(count + 1)),
        Section.BODIES: b"x" * count,
        Section.KEY_OFFSETS: offsets(*[0] * count, keys),
        Section.KEYS: bytes(keys),
    }
    with pytest.raises(CorruptBatch, match="1048576 bytes of keys"):
        by_columns(ArrowColumns(MESSAGE_SCHEMA), received(raw_batch(found, count, is_compressed=True), count))


@settings(deadline=None)
@given(
    sent=st.lists(st.tuples(messages, st.integers(0, 70_000), st.booleans()), min_size=2, max_size=80),
    compression=st.sampled_from([None, ALWAYS]),
    cut=st.tuples(st.integers(0, 80), st.integers(0, 80)),
)
@example(
    sent=[(Message("orders", b"x", "t"), 0, n % 3 > 0) for n in range(3 * SMALL_BATCH)], compression=None, cut=(0, 80)
)
def test_what_remains_of_a_compacted_batch_is_what_plain_decoding_gives(
    sent: list[tuple[Message, int, bool]], compression: Compression | None, cut: tuple[int, int]
) -> None:
    half = len(sent) // 2
    made = [
        encoded([each[0] for each in part], [BORN_MS + each[1] for each in part], compression)
        for part in (sent[:half], sent[half:])
    ]
    batch = received(compacted_of(made, [remains for _, _, remains in sent]), len(sent))
    columns = ArrowColumns(MESSAGE_SCHEMA)

    whole = columns.convert([batch], 1000, 1000 + len(sent))
    by_column = [row for piece in whole for row in piece.to_pylist()]

    by_row = columns.from_messages(batch.messages(0))
    assert by_column == by_row.to_pylist() == expected(batch)
    assert len(by_column) == sum(remains for _, _, remains in sent)
    if by_column:
        assert by_columns(columns, batch).to_pylist() == by_column
    start, end = 1000 + cut[0], 1000 + cut[1]
    found = [row for piece in columns.convert([batch], start, end) for row in piece.to_pylist()]
    assert found == [row for row in expected(batch) if start <= row["offset"] < end]
    tagged = ArrowColumns(MESSAGE_SCHEMA, frozenset({"t"}))
    found = [row for piece in tagged.convert([batch], start, end) for row in piece.to_pylist()]
    assert found == [row for row in expected(batch) if start <= row["offset"] < end and row["tag"] == "t"]


def test_the_newest_of_each_key_is_found_among_more_than_2_gib_of_bodies() -> None:
    schema = pa.schema({"keys": pa.list_(pa.string()), "body": pa.binary()})
    size = 1 << 30
    offsets = pa.array([0, size], pa.int32()).buffers()[1]
    # Pages that nothing writes to take no memory, and the batches share them.
    body = pa.Array.from_buffers(pa.binary(), 1, [None, offsets, pa.py_buffer(mmap.mmap(-1, size))])
    large = pa.record_batch([pa.array([["a"]], schema.field("keys").type), body], schema)
    small = pa.record_batch([pa.array([["a"], ["b"]], schema.field("keys").type), [b"x", b"y"]], schema)
    table = newest_of_each_key([large, large, large, small], schema)
    assert table.to_pylist() == [{"keys": ["a"], "body": b"x"}, {"keys": ["b"], "body": b"y"}]
