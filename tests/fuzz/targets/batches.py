"""Batches: valid ones whose parts are changed, under a checksum that is right again, and whatever opens them."""

from __future__ import annotations

import struct
from contextlib import suppress
from functools import lru_cache
from itertools import islice
from random import Random
from typing import Final

import pyarrow as pa
import zstandard

from fuzz import mutation
from fuzz.target import Target
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.tables.columns import MESSAGE_SCHEMA, ArrowColumns, chosen_columns
from minimq.features.work_queues import copies
from minimq_common.batch import builder as batch_builder
from minimq_common.batch import header as batch
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import CODEC_ZSTD, DIRECTORY, HEADER, HEADER_BYTES, Section
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import Message, MessageQueue
from minimq_proto.v1 import broker_pb2
from support.arrow_columns import by_columns
from support.batches import ALWAYS, NOW_MS, sealed
from support.compacted_batches import compacted_of

QUEUE: Final = MessageQueue("orders", "broker-a", 3)
_ERRORS: Final = (CorruptBatch, InvalidArgument)
#: Messages of a batch whose keys and properties are decoded.
_LOOKED_AT: Final = 50


def _messages(count: int, *, tags: int = 0, keys: int = 0, properties: int = 0, word: str = "a") -> list[Message]:
    return [
        Message(
            "orders",
            b"body %d" % number * (number % 3 + 1),
            f"tag-{word}-{number % tags}" if tags and number % 5 else None,
            tuple(f"{word}-{number}-{key}" for key in range(keys)),
            {f"{word}-{name}": f"{number}" for name in range(properties if number % 4 else 0)},
        )
        for number in range(count)
    ]


@lru_cache(maxsize=1)
def fifo_batches() -> tuple[bytes, ...]:
    """Return batches as producers make them for a FIFO topic."""
    return tuple(_of_group(count, compression) for count in (1, 7, 100) for compression in (None, ALWAYS))


@lru_cache(maxsize=1)
def compacted_batches() -> tuple[bytes, ...]:
    """Return batches as brokers make them by compaction."""
    made = []
    for sent in (_messages(7, tags=3, keys=2, properties=2), _messages(40, keys=1)):
        count = 3 * len(sent)
        for compression in (None, ALWAYS):
            parts = [batch_builder.encode(sent, NOW_MS, 0xFEED, number, 1 << 20, compression) for number in range(3)]
            made += [compacted_of(parts, [number % 3 > 0 for number in range(count)])]
            made += [compacted_of(parts, [False] * count)]
    return tuple(made)


def _of_group(count: int, compression: Compression | None) -> bytes:
    builder = batch_builder.BatchBuilder(1 << 20, compression, f"account-{count}")
    builder.add(_messages(count, tags=3, keys=1, properties=2))
    return builder.build(NOW_MS, 0xFEED, 7)


@lru_cache(maxsize=1)
def valid_batches() -> tuple[bytes, ...]:
    """Return batches as producers make them."""
    made = []
    for count in (1, 2, 3, 7, 40, 100):
        for kind in ({}, {"tags": 3}, {"tags": 90, "keys": 1}, {"keys": 2, "properties": 2}, {"properties": 4}):
            for word in ("a", "\u00fc\u20ac\U0001f600"):
                sent = _messages(count, word=word, **kind)
                for born in (NOW_MS, [NOW_MS + number * 7 for number in range(count)]):
                    made += [
                        batch_builder.encode(sent, born, 0xFEED, 7, 1 << 20, compression)
                        for compression in (None, ALWAYS)
                    ]
    copies = [Message("orders", b"x", None, (), {**_COPIED, name: text}) for name in _COPIED for text in _COPIED_TEXTS]
    return (
        *made,
        *fifo_batches(),
        *compacted_batches(),
        *(batch_builder.encode([copy], NOW_MS, 0xFEED, 7, 1 << 20) for copy in copies),
    )


#: The properties of a message that waits in a retry topic, and what they may say.
_COPIED: Final = {
    copies.RETRY_TOPIC: "orders",
    copies.ORIGIN_MESSAGE_ID: "0" * 40,
    copies.ORIGIN_QUEUE: "orders/broker-a/3",
    copies.ORIGIN_OFFSET: "17",
    copies.ORIGIN_BORN: str(NOW_MS),
    copies.DELIVERY_COUNT: "3",
    copies.RETRY_DELAY_MS: "10000",
}
_COPIED_TEXTS: Final = ("", "-1", "9" * 18, "9" * 30, "9" * 5000, "\u0663", "\u00b2", "1e3")


@lru_cache(maxsize=1)
def _parts() -> list[tuple[tuple[int, ...], bytes, tuple[bytes, ...]]]:
    """Return the header, the lane with the hashes of tags, and the sections of valid batches."""
    found = []
    compacted = set(compacted_batches())
    for data in (each for each in valid_batches() if each not in compacted):
        records = RecordBatch(data)
        header = HEADER.unpack_from(data)
        hashes = data[HEADER_BYTES : records.header.size]
        found.append((header, hashes, tuple(bytes(records.section(section)) for section in Section)))
    return found


def make_batch(rng: Random) -> bytes:
    """Return a batch that is valid but for some changes, mostly of its parts."""
    kind = rng.random()
    if kind < 0.02:
        return rng.choice(valid_batches())
    if kind < 0.06:
        return mutation.blob(rng, rng.choice(valid_batches()))
    if kind < 0.12:
        return sealed(mutation.blob(rng, rng.choice(valid_batches())[:-4]))
    if kind < 0.1202:
        return _large(rng)
    if kind < 0.2:
        return _of_compacted(rng)
    header, hashes, sections = rng.choice(_parts())
    fields, columns = list(header), list(sections)
    fields[1] = CODEC_ZSTD if rng.random() < 0.3 else 0
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        _CHANGES[rng.randrange(len(_CHANGES))](rng, fields, columns)
    if rng.random() < 0.03:
        hashes = mutation.blob(rng, hashes)
    return _joined(rng, fields, hashes, columns)


def _of_compacted(rng: Random) -> bytes:
    """Return a compacted batch with changes in the numbers in front of its directory, of which most are found there."""
    changed = bytearray(rng.choice(compacted_batches())[:-4])
    for _ in range(rng.choice((1, 1, 2))):
        at = rng.choice((4, HEADER_BYTES, *(HEADER_BYTES + 4 * rng.randrange(1, 40) for _ in range(6))))
        if at + 4 <= len(changed):
            near = struct.unpack_from("<I", changed, at)[0] + rng.choice((-1, 1, 2, 100))
            struct.pack_into("<I", changed, at, (near if rng.random() < 0.6 else mutation.number(rng)) & 0xFFFFFFFF)
    return sealed(bytes(changed))


def _joined(rng: Random, fields: list[int], hashes: bytes, columns: list[bytes]) -> bytes:
    lengths = [len(column) for column in columns]
    if rng.random() < 0.05:
        lengths[rng.randrange(len(lengths))] = abs(mutation.number(rng)) & 0xFFFFFFFF
    content = DIRECTORY.pack(*lengths) + b"".join(columns)
    if rng.random() < 0.02:
        content = mutation.blob(rng, content)
    if fields[1] == CODEC_ZSTD:
        content = _compressed(rng, content)
    return sealed(HEADER.pack(*fields) + hashes + content)


def _compressed(rng: Random, content: bytes) -> bytes:
    kind = rng.random()
    if kind < 0.03:  # its size is not said, or said wrongly
        return zstandard.ZstdCompressor(write_content_size=False).compress(content)
    if kind < 0.06:
        return zstandard.ZstdCompressor().compress(content) * 2
    frame = zstandard.ZstdCompressor(write_checksum=kind < 0.5).compress(content)
    return mutation.blob(rng, frame) if kind > 0.95 else frame


# ---- Changes of the fields of a header, and of columns ---------------------------------------------

_WIDTHS: Final = (8, 8, 16, 32, 32, -64, -64, 64, 64, 32)


def _change_header(rng: Random, fields: list[int], _columns: list[bytes]) -> None:
    place = rng.randrange(len(fields))
    width = _WIDTHS[place]
    number = mutation.number(rng)
    fields[place] = number if width < 0 else number & ((1 << width) - 1)


def _change_format(_rng: Random, fields: list[int], _columns: list[bytes]) -> None:
    """Say that there is a lane where there is none, or the contrary."""
    fields[0] = batch.VERSION if fields[0] == batch.FIFO_VERSION else batch.FIFO_VERSION


def _change_count(rng: Random, fields: list[int], columns: list[bytes]) -> None:
    """Change the count, and as many offsets with it."""
    count = rng.choice((1, 2, 3, 100, 1000, 65_535, len(columns[0]) // 4, max(len(columns[0]) // 4 - 2, 0)))
    fields[3] = count
    for section in rng.sample((Section.BODY_OFFSETS, Section.KEY_OFFSETS, Section.PROPERTY_OFFSETS), rng.randint(1, 3)):
        if len(columns[section]) >= 4:
            kept = columns[section][: 4 * count]
            columns[section] = kept.ljust(4 * count, b"\0") + columns[section][-4:]


def _change_offset(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    section = rng.choice(_OFFSETS)
    count = len(columns[section]) // 4
    if not count:
        return
    changed = bytearray(columns[section])
    for _ in range(rng.choice((1, 1, 2, 5))):
        # The first and the last are looked at when a batch is opened: those between are what it takes more to check.
        place = rng.randint(1, count - 2) if count > 2 and rng.random() < 0.8 else rng.randrange(count)
        near = struct.unpack_from("<i", changed, 4 * place)[0] + rng.choice((-100, -2, -1, 1, 2, 100))
        found = near if rng.random() < 0.6 else mutation.number(rng)
        struct.pack_into("<I", changed, 4 * place, found & 0xFFFFFFFF)
    columns[section] = bytes(changed)


def _change_column(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    place = rng.randrange(len(columns))
    columns[place] = mutation.blob(rng, columns[place], 2)


def _change_text(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    """Change bytes of text, and no length."""
    section = rng.choice(_TEXTS)
    changed = bytearray(columns[section])
    if changed:
        for _ in range(rng.randint(1, 3)):
            changed[rng.randrange(len(changed))] = rng.choice((0, 0x80, 0xBF, 0xC3, 0xED, 0xF4, 0xFF, 0x41))
        columns[section] = bytes(changed)


def _exchange(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    one, other = rng.randrange(len(columns)), rng.randrange(len(columns))
    columns[one], columns[other] = columns[other], columns[one]


def _borrow(rng: Random, fields: list[int], columns: list[bytes]) -> None:
    """Take a column of another batch, with as many records where there is one."""
    place = rng.randrange(len(columns))
    for _ in range(10):
        header, _, sections = rng.choice(_parts())
        columns[place] = sections[place]
        if header[3] == fields[3]:
            break


def _empty(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    columns[rng.randrange(len(columns))] = b""


def _lengthen(rng: Random, _fields: list[int], columns: list[bytes]) -> None:
    """Make values long, with a last offset that fits."""
    offsets, values = rng.choice(
        (
            (Section.BODY_OFFSETS, Section.BODIES),
            (Section.KEY_OFFSETS, Section.KEYS),
            (Section.NAME_OFFSETS, Section.NAMES),
        )
    )
    if columns[offsets]:
        columns[values] += rng.choice((b"x", b"\0", "\u00fc".encode(), b"\x80")) * rng.choice((1, 100, 40_000, 140_000))
        columns[offsets] = columns[offsets][:-4] + struct.pack("<I", len(columns[values]))


_OFFSETS: Final = (
    Section.BODY_OFFSETS,
    Section.KEY_OFFSETS,
    Section.PROPERTY_OFFSETS,
    Section.NAME_OFFSETS,
    Section.VALUE_OFFSETS,
)
_TEXTS: Final = (Section.TAG_DICTIONARY, Section.KEYS, Section.NAMES, Section.VALUES)
_CHANGES: Final = (
    *(_change_header, _change_count, _change_offset, _change_offset, _change_offset, _change_column, _change_column),
    *(_change_text, _exchange, _borrow, _empty, _lengthen, _change_format),
)


def _large(rng: Random) -> bytes:
    """Return a batch that is small on the wire and large when it is opened."""
    count = rng.choice((1, 1000, 1 << 16, 1 << 18, 1 << 20))
    columns = [b""] * len(Section)
    columns[Section.BODY_OFFSETS] = bytes(4 * (count + 1))
    if rng.random() < 0.5:
        columns[Section.TAG_DICTIONARY] = rng.choice(
            (b"\0" * rng.choice((1, 60_000, 70_000)), b"t" * rng.choice((1, 100, 1 << 20)))
        )
        columns[Section.TAG_CODES] = bytes(rng.choice((0, 1, 2)) * count)
    if rng.random() < 0.5:
        columns[Section.KEY_OFFSETS] = bytes(4 * count) + struct.pack(
            "<I", (size := rng.choice((0, 1000, 32_767, 131_000, 1 << 20)))
        )
        columns[Section.KEYS] = rng.choice((b"\0", b"k")) * size
    if rng.random() < 0.5:
        properties = rng.choice((count, 1, 32_768, 1 << 18))
        step = properties // count
        columns[Section.PROPERTY_OFFSETS] = struct.pack(
            f"<{count + 1}I", *(number * step for number in range(count)), properties
        )
        columns[Section.NAME_OFFSETS] = columns[Section.VALUE_OFFSETS] = bytes(4 * (properties + 1))
    if rng.random() < 0.5:
        columns[Section.BORN] = bytes(rng.choice((1, 2, 4)) * count)
    content = DIRECTORY.pack(*map(len, columns)) + b"".join(columns)
    fields = (batch.VERSION, CODEC_ZSTD, 0xFFFF, count, 0, NOW_MS, NOW_MS, 1, 1, 0)
    return sealed(HEADER.pack(*fields) + zstandard.ZstdCompressor(level=1).compress(content))


# ---- Those who open batches ------------------------------------------------------------------------


def open_records(data: bytes) -> None:
    """Look at all of a batch. What was checked as a whole raises nothing later."""
    records = RecordBatch(data)
    _ = records.size, records.header.settled_before
    with suppress(CorruptBatch):
        records.check_values()
        try:
            _look_at(records)
        except CorruptBatch as error:
            raise AssertionError(f"check_values passed, and then: {error}") from error
        return
    _look_at(records)


def _look_at(records: RecordBatch) -> None:
    count = len(records)
    numbers = records.numbers()
    assert len(records.bodies()) == len(records.tags()) == len(numbers) == records.remaining
    assert all(0 <= number < count for number in numbers)
    records.bodies(count - 1)
    records.tags(count - 1)
    for index in {*numbers[:_LOOKED_AT], *numbers[-1:]}:
        records.message_id(index)
        records.stored_ms(index)
        records.keys(index)
        records.properties(index)
        records.born_ms(index)


def take_in(data: bytes) -> None:
    """Look at a batch as a broker does before it stores it: nothing that is stored is rejected by its own index."""
    header = batch.verified_header(data)
    broker_pb2.StoredBatch(base_offset=0, batch=data, count=header.count)


def _stored(data: bytes) -> EncodedRecords:
    count = min(HEADER.unpack_from(data)[3], 1 << 40) if len(data) >= HEADER_BYTES else 1
    return EncodedRecords(1000, NOW_MS, 0, count, data)


def receive(data: bytes) -> None:
    """Look at all that a consumer may ask a message for."""
    received = ReceivedBatch(QUEUE, _stored(data))
    for message in islice(received.messages(0), _LOOKED_AT):
        _ = message.keys, message.properties, message.born_at, message.stored_at, message.message_id, repr(message)
        copy = copies.original_of(message)
        _ = copy.topic, copy.properties, copy.message_id, copy.born_at, copy.delivery_count
        copies.retry_of(copy, "g", copy.delay_ms)
        copies.dead_letter_of(copy, "g", "rejected", 1)
        copies.origin_of(copy)


@lru_cache(maxsize=1)
def _spark() -> tuple[ArrowColumns, ...]:
    pa.set_memory_pool(pa.system_memory_pool())  # which holds no address space in reserve
    return (
        ArrowColumns(MESSAGE_SCHEMA),
        ArrowColumns(MESSAGE_SCHEMA, frozenset({"tag-a-1", "x"})),
        ArrowColumns(chosen_columns(["body", "tag"])),
    )


def convert(data: bytes) -> None:
    """Convert a batch to columns for Spark, whole and in part; what comes of it is sound, and the same in both ways."""
    received = ReceivedBatch(QUEUE, _stored(data))
    every, some, few = _spark()
    for columns, start, end in ((every, 0, 1 << 62), (some, 1001, 1040), (few, 1000, 1002)):
        for rows in columns.convert([received], start, end):
            rows.validate(full=True)
    if 0 < received.records.remaining <= _LOOKED_AT:
        ways = [by_columns(every, received), every.from_messages(received.messages(0))]
        # A name that a record has twice, which no producer writes, stands in the column twice and in the message once.
        names = [list(map(dict, rows.column("properties").to_pylist())) for rows in ways]
        one, other = (rows.drop_columns(["properties"]) for rows in ways)
        assert one.equals(other), "columns and messages differ"
        assert names[0] == names[1], "properties in columns and in messages differ"


TARGETS = (
    Target("batch.records", make_batch, open_records, _ERRORS, 6),
    Target("batch.broker", make_batch, take_in, _ERRORS, 3),
    Target("batch.received", make_batch, receive, _ERRORS, 2),
    Target("batch.spark", make_batch, convert, _ERRORS, 2),
)
