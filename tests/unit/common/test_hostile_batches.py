"""Batches with a right checksum that try to lie to a broker, or to take a reader's memory."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq_common.batch import header as batch
from minimq_common.batch.compression import MAX_CONTENT_BYTES
from minimq_common.batch.header import MAX_RECORDS, Section
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch
from minimq_common.model import MessageQueue
from minimq_common.timestamps import MAX_TIME_MS
from support.cases import for_each
from support.hostile_batches import offsets, raw_batch, sections

MANY = MAX_RECORDS
EMPTY_BODIES = bytes(4 * (MANY + 1))
#: Most memory that opening a batch may take.
MAX_BYTES = 4 * MAX_CONTENT_BYTES


def read(data: bytes) -> int:
    """Look at all that a consumer can ask a batch for; return how many messages it has."""
    received = ReceivedBatch(
        MessageQueue("t", "broker-a", 0), EncodedRecords(0, 0, 0, batch.HEADER.unpack_from(data)[3], data)
    ).messages(0)
    for message in received:
        _ = message.keys, message.properties, message.born_at, message.message_id, message.tag
    return len(received)


# Each is small on the wire. What the first ones make of a reader's memory is bounded, the others are rejected.
EXPLOSIONS: dict[str, Callable[[], bytes]] = {
    "empty messages": lambda: raw_batch({Section.BODY_OFFSETS: EMPTY_BODIES}, MANY, is_compressed=True),
    "a dictionary of tags without codes": lambda: raw_batch(
        {Section.BODY_OFFSETS: EMPTY_BODIES, Section.TAG_DICTIONARY: b"\0" * 50_000}, MANY, is_compressed=True
    ),
    "too many records": lambda: raw_batch({Section.BODY_OFFSETS: bytes(4 * (MANY + 2))}, MANY + 1, is_compressed=True),
    "bodies that overlap": lambda: raw_batch(
        {Section.BODY_OFFSETS: offsets(*([0, 1 << 20] * 2000), 1 << 20), Section.BODIES: bytes(1 << 20)},
        4000,
        is_compressed=True,
    ),
    "properties without end": lambda: raw_batch(
        {
            Section.BODY_OFFSETS: offsets(0, 1),
            Section.BODIES: b"x",
            Section.PROPERTY_OFFSETS: offsets(0, (1 << 31) - 1),
            Section.NAME_OFFSETS: offsets(0, 0),
            Section.VALUE_OFFSETS: offsets(0, 0),
        },
        1,
    ),
    "a million properties of one record": lambda: raw_batch(
        {
            Section.BODY_OFFSETS: offsets(0, 1),
            Section.BODIES: b"x",
            Section.PROPERTY_OFFSETS: offsets(0, 1 << 20),
            Section.NAME_OFFSETS: bytes(4 * ((1 << 20) + 1)),
            Section.VALUE_OFFSETS: bytes(4 * ((1 << 20) + 1)),
        },
        1,
        is_compressed=True,
    ),
    "ten million keys of one record": lambda: raw_batch(
        {
            Section.BODY_OFFSETS: offsets(0, 1),
            Section.BODIES: b"x",
            Section.KEY_OFFSETS: offsets(0, 10_000_000),
            Section.KEYS: bytes(10_000_000),
        },
        1,
        is_compressed=True,
    ),
    "a long tag of a million records": lambda: raw_batch(
        {Section.BODY_OFFSETS: EMPTY_BODIES, Section.TAG_DICTIONARY: b"t" * 4000}, MANY, is_compressed=True
    ),
}


@for_each("what", EXPLOSIONS)
def test_a_small_batch_takes_a_bounded_part_of_a_readers_memory(what: str) -> None:
    data = EXPLOSIONS[what]()
    assert len(data) < 1 << 16
    tracemalloc.start()
    try:
        if what in ("empty messages", "a dictionary of tags without codes"):
            opened = RecordBatch(data)
            opened.check_values()
            assert len(opened.bodies()) == len(opened.tags()) == MANY
        else:
            with pytest.raises(CorruptBatch):
                read(data)
        assert tracemalloc.get_traced_memory()[1] < MAX_BYTES
    finally:
        tracemalloc.stop()


ONE = {Section.BODY_OFFSETS: offsets(0, 1), Section.BODIES: b"x"}
TWO = {Section.BODY_OFFSETS: offsets(0, 1, 2), Section.BODIES: b"xy"}


@settings(max_examples=400)
@given(sections, st.integers(1, 5), st.booleans())
def test_whatever_the_columns_are_a_reader_gets_all_messages_or_a_named_error(
    found: dict[Section, bytes], count: int, is_compressed: bool
) -> None:
    honest = {Section.BODY_OFFSETS: offsets(*range(count + 1)), Section.BODIES: b"x" * count}
    data = raw_batch(honest | found, count, is_compressed=is_compressed)
    number = count
    with suppress(CorruptBatch):
        number = read(data)
    assert number == count


# ---- what a broker rejects ------------------------------------------------------------------------


REJECTED = {
    "a count beyond the content": lambda: raw_batch(ONE, 3),
    "a count beyond 32 bits with a sign": lambda: raw_batch(ONE, 1 << 31),
    "a count beyond the content of a frame": lambda: raw_batch(ONE, 300, is_compressed=True),
    "more records than the limit": lambda: raw_batch(
        {Section.BODY_OFFSETS: bytes(4 * (MANY + 2))}, MANY + 1, is_compressed=True
    ),
    "a body larger than the batch": lambda: raw_batch(ONE, 1, largest_body=1000),
    "no frame": lambda: raw_batch(ONE, 1, codec=batch.CODEC_ZSTD),
    "an unknown codec": lambda: raw_batch(ONE, 1, codec=9),
    "a time before 1970": lambda: raw_batch(ONE, 1, born_first_ms=-1),
    "a time after 9999": lambda: raw_batch(ONE, 1, born_last_ms=MAX_TIME_MS + 1),
    "a time that a delta may lead beyond 9999": lambda: raw_batch(
        ONE, 1, born_first_ms=MAX_TIME_MS, born_last_ms=MAX_TIME_MS
    ),
    "times in the wrong order": lambda: raw_batch(ONE, 1, born_first_ms=2, born_last_ms=1),
}


@for_each("what", REJECTED)
def test_a_header_that_promises_too_much_is_rejected_unopened(what: str) -> None:
    with pytest.raises(CorruptBatch):
        batch.verified_header(REJECTED[what]())
