"""A row makes a message exactly when a producer would take that message; else column, value and remedy are named."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import pyarrow as pa
import pytest

from minimq import Message, MessageQueue, errors
from minimq.features.tables.destinations import Destinations
from minimq.features.tables.row_batch import to_batch
from minimq_common.batch.builder import encode
from minimq_common.batch.header import MAX_METADATA, MAX_TAG
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_topic
from support.cases import for_each

MAX_BYTES = 1000
LONG = "x" * (MAX_METADATA + 1)
WIDE = "😀" * MAX_METADATA
SURROGATE = "a\ud800"

Raw = str | bytes | None


class Row(NamedTuple):
    """The values of a message and a row."""

    body: bytes | None = b"x"
    tag: str | None = None
    keys: Sequence[str | None] = ()
    properties: Sequence[tuple[str, str | None]] = ()
    topic: str = "orders"


PLAIN = Row()

TAKEN = [
    PLAIN,
    Row(body=b"\0"),
    Row(body=b"x" * MAX_BYTES),
    Row(tag=""),
    Row(tag=" a || b * \n"),
    Row(tag="ü" * MAX_TAG),
    Row(tag="tüg"),
    Row(keys=["a b", "c\n", "ö"]),
    Row(keys=[LONG[1:]]),
    Row(keys=[WIDE]),
    Row(keys=["k"] * (MAX_METADATA // 2 + 1)),
    Row(properties=[("", "")]),
    Row(properties=[("__TAG__", "KEYS"), ("a\0b", "c\0\n")]),
    Row(properties=[("x", LONG[2:])]),
    Row(properties=[("", WIDE)]),
    Row(properties=[(str(number), "") for number in range(6000)]),
    Row(topic="%RETRY%group.A_b-1"),
    Row(topic="t" * 127),
]

NUL = "column 'tag' has a NUL character in a row: take it out (in Spark: replace(..., char(0), ''))"
UTF_8 = "is no text in UTF-8 in a row: repair it (in Spark: make_valid_utf8)"
KEYS = "column 'keys' cannot be written in a row: the keys of a message have 327"

#: What is rejected, and the text for it.
REJECTED = [
    (Row(body=None), "column 'body' is null in a row: filter it out, or make it empty (in Spark: coalesce)"),
    (
        Row(body=b"x" * (MAX_BYTES + 1)),
        "column 'body' has 1001 bytes in a row, the limit is 1000: split it, or raise max_body_bytes (in "
        "Spark: maxBodyBytes), and --max-body-bytes of the brokers",
    ),
    (Row(tag="a\0b"), NUL),
    (Row(tag="\0" + LONG), NUL),
    (
        Row(tag="ü" * (MAX_TAG + 1)),
        "column 'tag' cannot be written in a row: the tag of a message has 256 characters, the limit is 255: put "
        "identifiers into keys, and text into a property",
    ),
    (Row(tag=SURROGATE), f"column 'tag' {UTF_8}"),
    (Row(keys=["a", "b\0"]), NUL.replace("tag", "keys")),
    (Row(keys=[SURROGATE]), f"column 'keys' {UTF_8}"),
    (Row(keys=["a\n", None]), "column 'keys' has a key that is null in a row: take it out (in Spark: array_compact)"),
    (Row(keys=[LONG]), KEYS),
    (Row(keys=["k"] * (MAX_METADATA // 2 + 2)), KEYS),
    (Row(keys=["a", ""]), "column 'keys' has an empty key in a row: take it out (in Spark: array_remove(keys, ''))"),
    (Row(keys=[WIDE, "x"]), KEYS),
    (
        Row(properties=[("a", "1"), ("x", LONG)]),
        "column 'properties' cannot be written in a row: the properties of a message have 32771 characters, the limit "
        "is 32767: put it into the body",
    ),
    (
        Row(properties=[("a", "1"), ("b\n", None)]),
        "column 'properties' has a value that is null in a row: take it out (in Spark: map_filter)",
    ),
    (Row(properties=[(SURROGATE, "")]), f"column 'properties' {UTF_8}"),
    (Row(properties=[("a", SURROGATE)]), f"column 'properties' {UTF_8}"),
    (Row(topic=""), "the topic name is empty"),
    (Row(topic="a b"), "illegal topic name 'a b': letters, digits and the characters _ - . are allowed"),
    (Row(topic="a\n"), "illegal topic name 'a\\n': letters, digits "),
    (Row(topic="t" * 128), f"the topic name has 128 characters, the limit is 127: {'t' * 40}..."),
    (Row(topic="orders|eu"), "illegal topic name 'orders|eu': letters, "),
]


def queues(topic: str) -> list[MessageQueue]:
    """Return the queues of a topic, whose name is checked as by the client."""
    return [MessageQueue(check_topic(topic), "broker-a", 0)]


def as_message(rows: Sequence[Row]) -> bytes:
    """Return what a producer makes of rows, as messages."""
    sent = []
    for row in rows:
        message = Message(row.topic, row.body, row.tag, row.keys, dict(row.properties))  # type: ignore[arg-type]
        check_topic(message.topic)
        sent.append(message)
    return encode(sent, 0, 0, 0, MAX_BYTES)


def texts(values: Sequence[Raw]) -> pa.Array:
    """Return text as Spark hands it on, which need not be UTF-8."""
    raw = [value.encode(errors="surrogatepass") if isinstance(value, str) else value for value in values]
    return pa.array(raw, pa.binary()).view(pa.string())


def as_row(rows: Sequence[Row]) -> bytes:
    """Return what the sink makes of rows that go to one topic."""
    key_ends, property_ends = [0], [0]
    for row in rows:
        key_ends.append(key_ends[-1] + len(row.keys))
        property_ends.append(property_ends[-1] + len(row.properties))
    entries = [entry for row in rows for entry in row.properties]
    batch = pa.RecordBatch.from_pydict(
        {
            "topic": texts([row.topic for row in rows]),
            "body": pa.array([row.body for row in rows], pa.binary()),
            "tag": texts([row.tag for row in rows]),
            "keys": pa.ListArray.from_arrays(
                pa.array(key_ends, pa.int32()), texts([key for row in rows for key in row.keys])
            ),
            "properties": pa.MapArray.from_arrays(
                pa.array(property_ends, pa.int32()),
                texts([name for name, _ in entries]),
                texts([value for _, value in entries]),
            ),
        }
    )
    [(_, content)] = Destinations(None, queues).split(batch)
    return to_batch(content, MAX_BYTES).build(0, 0, 0)


def read(batch: bytes) -> list[tuple[bytes, str | None, tuple[str, ...], dict[str, str]]]:
    opened = RecordBatch(batch)
    return [
        (body, tag, tuple(opened.keys(index)), dict(opened.properties(index)))
        for index, (body, tag) in enumerate(zip(opened.bodies(), opened.tags(), strict=True))
    ]


@for_each("row", TAKEN)
def test_what_a_producer_takes_is_taken_and_read_back_equal(row: Row) -> None:
    plain = PLAIN._replace(topic=row.topic)
    for rows in ([row], [plain, row, plain]):
        assert read(as_row(rows)) == read(as_message(rows))


@for_each(("row", "text"), REJECTED)
def test_what_a_producer_rejects_is_rejected(row: Row, text: str) -> None:
    plain = PLAIN._replace(topic=row.topic)
    for rows in ([row], [plain, row, plain]):
        with pytest.raises((errors.InvalidArgument, errors.MessageTooLarge)):
            as_message(rows)
        with pytest.raises(InvalidArgument) as caught:
            as_row(rows)
        assert str(caught.value).startswith(text)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 250


def test_a_topic_for_all_rows_that_can_be_none() -> None:
    batch = pa.RecordBatch.from_pydict({"body": [b"x"]})
    with pytest.raises(InvalidArgument, match=r"^illegal topic name 'orders\|eu': "):
        list(Destinations("orders|eu", queues).split(batch))


def test_a_null_may_hide_what_would_be_rejected() -> None:
    hidden = pa.Array.from_buffers(
        pa.string(), 2, [pa.py_buffer(b"\x02"), pa.py_buffer(pa.array([0, 2, 3], pa.int32()).buffers()[1]),
                         pa.py_buffer(b"a\0b")],
    )  # fmt: skip
    assert hidden.to_pylist() == [None, "b"]
    for name in ("tag", "keys"):
        batch = pa.RecordBatch.from_pydict({"body": [b"x", b"y"], name: hidden})
        opened = RecordBatch(to_batch(batch, MAX_BYTES).build(0, 0, 0))
        assert (opened.tags() == [None, "b"]) if name == "tag" else (opened.keys(0) == () and opened.keys(1) == ("b",))
