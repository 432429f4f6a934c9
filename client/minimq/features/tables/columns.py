"""Converts stored batches to Arrow record batches without copying bodies, keys and properties.

A stored batch uses Arrow's layout for variable-length values: 32-bit offsets and the concatenated bytes. So a column
takes a few calls per batch, whatever its size. The buffers come from producers, so they are validated before a reader
gets them: a wrong offset would let it read outside the batch.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from operator import attrgetter
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from minimq.consuming.received import ReceivedBatch, ReceivedMessage
from minimq.features.tables.sections import fixed_array, variable_array
from minimq_common.batch.header import MAX_METADATA_BYTES, SEPARATOR, Section
from minimq_common.batch.record_origins import RecordOrigin, RecordOrigins
from minimq_common.batch.records import RecordBatch, message_id
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import MessageQueue

_MOMENT: Final = pa.timestamp("us", tz="UTC")

#: Only the tag may be null. A message without keys or properties has an empty list or map.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("body", pa.binary()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_timestamp", _MOMENT),
        ("store_timestamp", _MOMENT),
        ("message_id", pa.string()),
    ]
)

#: Batches with fewer records are merged: converting one alone costs as much as one of hundreds of records.
SMALL_BATCH: Final = 32
#: Limits of a merged batch.
_MERGED_RECORDS: Final = 4096
_MERGED_BYTES: Final = 1 << 20
#: Arrow batches below both limits are merged; for larger ones, the copy costs as much as it saves.
_ENOUGH_ROWS: Final = 1024
_ENOUGH_BYTES: Final = 256 << 10
#: Maximum rows of an Arrow batch; a stored batch of many tiny records is split.
MAX_ROWS: Final = 1 << 16

_ID_LENGTH: Final = 40
_INDEX_DIGITS: Final = 4  # hex digits at the end of a message id that count the `MAX_ROWS` records of a part
_UNSIGNED: Final = {1: pa.uint8(), 2: pa.uint16(), 4: pa.uint32()}

#: Exceptions of decoding if the sections of a batch contradict each other.
_MALFORMED: Final = (CorruptBatch, pa.ArrowException, ValueError, LookupError, struct.error)


def chosen_columns(columns: Iterable[str] | None) -> pa.Schema:
    """Return the schema of the chosen columns, in their order; None for all."""
    if columns is None:
        return MESSAGE_SCHEMA
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns!r}: give a list, such as [{columns!r}]")
    names = list(columns)
    if not names:
        raise InvalidArgument(f"no column is chosen: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
    for name in names:
        if name not in MESSAGE_SCHEMA.names:
            raise InvalidArgument(f"there is no column {name!r}: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is chosen twice")
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in names])


class _Part(NamedTuple):
    """Up to `MAX_ROWS` records of a batch, beginning at a multiple of that: nearly always the whole batch."""

    batch: ReceivedBatch
    first: int
    size: int

    @property
    def records(self) -> RecordBatch:
        return self.batch.records

    @property
    def rows(self) -> slice:
        return slice(self.first, self.first + self.size)

    @property
    def numbers(self) -> Sequence[int]:
        """The indexes of its records in the batch; compaction may have left gaps."""
        return self.records.numbers()[self.rows]


#: Makes a column of a part; the given type may differ from `MESSAGE_SCHEMA` in the nullability of nested fields.
_Column = Callable[[_Part, pa.DataType], pa.Array]


class ArrowColumns:
    """Makes Arrow record batches with the chosen columns of records with the chosen tags. Reusable."""

    def __init__(self, schema: pa.Schema, tags: frozenset[str] | None = None) -> None:
        #: Names and types as in `MESSAGE_SCHEMA`; the nullability of texts and lists may differ.
        self.schema = schema
        names = [name.lower() for name in self.schema.names]
        self._columns = [(_COLUMNS[name], kind) for name, kind in zip(names, self.schema.types, strict=True)]
        self._foreign = [index for index, name in enumerate(names) if name in _FOREIGN]
        self._rows = [(_ROW_VALUES[name], kind) for name, kind in zip(names, self.schema.types, strict=True)]
        self._tags = tags
        self._tag_set = None if tags is None else pa.array(sorted(tags), pa.string())
        #: Queue and offset determine all chosen columns, so that no batch needs to be read.
        self.are_known = tags is None and _PLACE.issuperset(names)

    def count(self, queue: MessageQueue, start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield a row for each offset of a range, without reading batches; requires `are_known`."""
        for first in range(start, end, MAX_ROWS):
            offsets = range(first, min(first + MAX_ROWS, end))
            arrays = [
                pa.array(offsets, field.type)
                if field.name.lower() == "offset"
                else pa.repeat(pa.scalar(getattr(queue, field.name.lower()), field.type), len(offsets))
                for field in self.schema
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self.schema)

    def convert(self, batches: Iterable[ReceivedBatch], start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Yield the records of one queue from offset `start` up to but not including `end`. Raises `CorruptBatch`."""
        return self.gathered(self.pieces(batches, start, end))

    def gathered(self, pieces: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield all rows of Arrow batches in order, with small batches merged."""
        waiting: list[pa.RecordBatch] = []
        rows = size = 0
        for piece in pieces:
            is_enough = piece.num_rows >= _ENOUGH_ROWS or piece.nbytes >= _ENOUGH_BYTES
            if not is_enough:
                waiting.append(piece)
                rows, size = rows + piece.num_rows, size + piece.nbytes
                if rows < _MERGED_RECORDS and size < _MERGED_BYTES:
                    continue
            if waiting:
                yield self._together(waiting)
                waiting, rows, size = [], 0, 0
            if is_enough:
                yield piece
        if waiting:
            yield self._together(waiting)

    def _together(self, parts: list[pa.RecordBatch]) -> pa.RecordBatch:
        if len(parts) == 1:
            return parts[0]
        [whole] = pa.Table.from_batches(parts, self.schema).combine_chunks().to_batches()
        return whole

    def pieces(self, batches: Iterable[ReceivedBatch], start: int, end: int) -> Iterator[pa.RecordBatch]:
        """Do as `convert`, without merging Arrow batches. Raises `CorruptBatch`."""
        small: list[ReceivedMessage] = []
        size = 0
        for batch in batches:
            if batch.records.remaining < SMALL_BATCH:
                small += [m for m in batch.messages(start) if m.queue_offset < end and self._wants(m)]
                size += batch.records.size
                if len(small) < _MERGED_RECORDS and size < _MERGED_BYTES:
                    continue
            if small:
                yield self.from_messages(small)
                small, size = [], 0
            if batch.records.remaining >= SMALL_BATCH:
                yield from self._cut(batch, start, end)
        if small:
            yield self.from_messages(small)

    def _from_part(self, part: _Part) -> pa.RecordBatch:
        try:
            arrays = [column(part, kind) for column, kind in self._columns]
            for index in self._foreign:
                arrays[index].validate(full=True)
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except _MALFORMED as error:
            raise _corrupt(part.batch, error) from None

    def from_messages(self, messages: list[ReceivedMessage]) -> pa.RecordBatch:
        """Convert messages one by one, which is cheaper for a few of a batch. Raises `CorruptBatch`."""
        try:
            arrays = [pa.array(list(map(value, messages)), kind) for value, kind in self._rows]
            return pa.RecordBatch.from_arrays(arrays, schema=self.schema)
        except _MALFORMED as error:
            raise _corrupt(messages[0].batch, error) from None

    def table(self, messages: Sequence[ReceivedMessage]) -> pa.Table:
        """Convert messages of one queue, in order; bodies are not copied. Raises `CorruptBatch`."""
        return pa.Table.from_batches(self._of_messages(messages), self.schema)

    def _of_messages(self, messages: Sequence[ReceivedMessage]) -> Iterator[pa.RecordBatch]:
        at = 0
        while at < len(messages):
            batch = messages[at].batch.whole
            last = messages[at].batch.end_offset
            end = bisect_left(messages, last, at, key=lambda message: message.queue_offset)
            part = messages[at:end]
            if batch is None or len(part) < SMALL_BATCH:
                yield self.from_messages(list(part))
            else:
                yield from self._rows_of(batch, part)
            at = end

    def _rows_of(self, batch: ReceivedBatch, messages: Sequence[ReceivedMessage]) -> Iterator[pa.RecordBatch]:
        pieces = list(self._cut(batch, messages[0].queue_offset, messages[-1].queue_offset + 1))
        if sum(piece.num_rows for piece in pieces) == len(messages):
            yield from pieces
            return
        first = batch.records.place(messages[0].index)
        places = pa.array([batch.records.place(message.index) - first for message in messages], pa.int64())
        yield from pa.Table.from_batches(pieces, self.schema).take(places).to_batches()

    def _wants(self, message: ReceivedMessage) -> bool:
        return self._tags is None or message.tag in self._tags

    def _cut(self, batch: ReceivedBatch, start: int, end: int) -> Iterator[pa.RecordBatch]:
        for part in _parts(batch):
            first = max(batch.records.place(start - batch.base_offset) - part.first, 0)
            count = min(batch.records.place(end - batch.base_offset) - part.first, part.size) - first
            if count > 0:
                yield from self._cut_part(part, first, count)

    def _cut_part(self, part: _Part, first: int, count: int) -> Iterator[pa.RecordBatch]:
        if self._tag_set is None:
            yield self._from_part(part).slice(first, count)
            return
        try:
            wanted = pc.is_in(_tag(part, pa.string()), self._tag_set).slice(first, count)
        except _MALFORMED as error:
            raise _corrupt(part.batch, error) from None
        if pc.any(wanted).as_py():  # otherwise no column is needed
            rows = self._from_part(part).slice(first, count)
            yield rows if pc.all(wanted).as_py() else rows.filter(wanted)


def _parts(batch: ReceivedBatch) -> Iterator[_Part]:
    count = batch.records.remaining
    return (_Part(batch, first, min(MAX_ROWS, count - first)) for first in range(0, count, MAX_ROWS))


def _corrupt(batch: ReceivedBatch, error: Exception) -> CorruptBatch:
    reason = str(error).splitlines()[0]
    return CorruptBatch(f"the batch at offset {batch.base_offset} of queue {batch.queue} is malformed: {reason}")


# ---- values of single messages -------------------------------------------------------------------


_ROW_VALUES: dict[str, Callable[[ReceivedMessage], object]] = {
    "topic": lambda message: message.topic,
    "broker_name": lambda message: message.queue.broker_name,
    "queue_id": lambda message: message.queue.queue_id,
    "offset": lambda message: message.queue_offset,
    "body": lambda message: message.body,
    "tag": lambda message: message.tag,
    "keys": lambda message: message.keys,
    "properties": lambda message: list(message.properties.items()),
    "born_timestamp": lambda message: message.batch.records.born_ms(message.index) * 1000,
    "store_timestamp": lambda message: message.batch.stored_ms_of(message.index) * 1000,
    "message_id": lambda message: message.message_id,
}


# ---- columns of batches --------------------------------------------------------------------------


def _of_queue(name: str) -> _Column:
    value = attrgetter(name)
    return lambda part, kind: _repeated(value(part.batch.queue), kind, _capacity(part))[: part.size]


def _offset(part: _Part, _: pa.DataType) -> pa.Array:
    if part.records.origins is not None:
        return pc.add(pa.array(part.numbers, pa.int64()), _int64(part.batch.base_offset))
    return pc.add(_counting(_capacity(part))[: part.size], _int64(part.batch.base_offset + part.first))


def _body(part: _Part, kind: pa.DataType) -> pa.Array:
    records = part.records
    return variable_array(records, kind, records.remaining, Section.BODY_OFFSETS, Section.BODIES)[part.rows]


def _tag(part: _Part, kind: pa.DataType) -> pa.Array:
    records = part.records
    if not records.has(Section.TAG_DICTIONARY):
        return pa.nulls(part.size, kind)
    dictionary = pa.array(records.tag_dictionary(), kind)
    codes = _numbers(part, Section.TAG_CODES)
    if codes is None:
        return pa.repeat(dictionary[0], part.size)
    return dictionary.take(codes)


def _keys(part: _Part, kind: pa.DataType) -> pa.Array:
    records, count = part.records, part.size
    if not records.has(Section.KEY_OFFSETS):
        return _empty(kind, _capacity(part))[:count]
    joined = variable_array(records, pa.string(), records.remaining, Section.KEY_OFFSETS, Section.KEYS)[part.rows]
    joined.validate(full=True)  # the functions below trust their input
    longest = pc.max(pc.binary_length(joined)).as_py()
    if longest > MAX_METADATA_BYTES:  # the split parts would take far more memory than the text
        raise ValueError(f"a record has {longest} bytes of keys")
    present = pc.not_equal(pc.binary_length(joined), pa.scalar(0, pa.int32()))
    if bytes(records.section(Section.KEYS)).find(SEPARATOR.encode()) < 0 and pc.all(present).as_py():
        return pa.ListArray.from_arrays(_counting(_capacity(part) + 1).cast(pa.int32())[: count + 1], joined, kind)
    split = pc.split_pattern(joined, SEPARATOR)  # makes one empty part of a record without keys
    lengths = pc.if_else(present, pc.list_value_length(split), pa.scalar(0, pa.int32()))
    parts = pc.list_flatten(split).filter(present.take(pc.list_parent_indices(split)))
    ends = pc.cumulative_sum(lengths)
    return pa.ListArray.from_arrays(pa.concat_arrays([pa.array([0], pa.int32()), ends]), parts, kind)


def _properties(part: _Part, kind: pa.DataType) -> pa.Array:
    records, count = part.records, part.size
    if not records.has(Section.PROPERTY_OFFSETS):
        return _empty(kind, _capacity(part))[:count]
    total = len(records.section(Section.NAME_OFFSETS)) // 4 - 1
    offsets = fixed_array(records, pa.int32(), records.remaining + 1, Section.PROPERTY_OFFSETS)
    names = variable_array(records, pa.string(), total, Section.NAME_OFFSETS, Section.NAMES)
    values = variable_array(records, pa.string(), total, Section.VALUE_OFFSETS, Section.VALUES)
    return pa.MapArray.from_arrays(offsets[part.first : part.first + count + 1], names, values, kind)


def _born_timestamp(part: _Part, kind: pa.DataType) -> pa.Array:
    first_ms = part.records.header.born_first_ms
    later_ms = _numbers(part, Section.BORN)
    if later_ms is None:
        return pa.repeat(_int64(first_ms * 1000), part.size).view(kind)
    return pc.multiply(pc.add(later_ms.cast(pa.int64()), _int64(first_ms)), _int64(1000)).view(kind)


def _store_timestamp(part: _Part, kind: pa.DataType) -> pa.Array:
    if part.records.origins is not None and part.records.origins.origins:
        times = [origin.stored_ms * 1000 for origin, records in _runs(part.records.origins, part) for _ in records]
        return pa.array(times, pa.int64()).view(kind)
    return pa.repeat(_int64(part.batch.stored_ms * 1000), part.size).view(kind)


def _int64(value: int) -> pa.Scalar:
    # For a number without a type, Arrow tries to import dateutil each time.
    return pa.scalar(value, pa.int64())


def _message_id(part: _Part, kind: pa.DataType) -> pa.Array:
    if part.records.origins is not None and not part.records.origins.origins:
        return pa.array(list(map(part.records.message_id, part.numbers)), kind)
    if part.records.origins is not None:
        ids = [
            message_id(origin.producer_id, origin.sequence, number - origin.first)
            for origin, records in _runs(part.records.origins, part)
            for number in records
        ]
        return pa.array(ids, kind)
    # All ids of a part have the same beginning, and all parts have the same endings.
    begin = part.records.message_id(part.first)[:-_INDEX_DIGITS].encode()
    ids = _blank_ids(_capacity(part))[: part.size]
    return pc.binary_replace_slice(ids, 0, len(begin), begin).cast(kind)


def _runs(origins: RecordOrigins, part: _Part) -> Iterator[tuple[RecordOrigin, Sequence[int]]]:
    numbers = part.numbers
    at = 0
    while at < len(numbers):
        origin, end = origins.run(numbers[at])
        stop = bisect_left(numbers, end, at)
        yield origin, numbers[at:stop]
        at = stop


_COLUMNS: dict[str, _Column] = {
    "topic": _of_queue("topic"),
    "broker_name": _of_queue("broker_name"),
    "queue_id": _of_queue("queue_id"),
    "offset": _offset,
    "body": _body,
    "tag": _tag,
    "keys": _keys,
    "properties": _properties,
    "born_timestamp": _born_timestamp,
    "store_timestamp": _store_timestamp,
    "message_id": _message_id,
}


#: Columns whose buffers come from a producer, so that they must be validated.
_FOREIGN: Final = frozenset({"body", "keys", "properties"})
#: Columns that are constant in a queue, or count up.
_PLACE: Final = frozenset({"topic", "broker_name", "queue_id", "offset"})


def _numbers(part: _Part, section: Section) -> pa.Array | None:
    records = part.records
    if not records.has(section):
        return None
    width = len(records.section(section)) // records.remaining
    if width not in _UNSIGNED:
        raise ValueError(f"{section.name} has {width} bytes for each record")
    return fixed_array(records, _UNSIGNED[width], records.remaining, section)[part.rows]


# ---- cached arrays ---------------------------------------------------------------------------------
# Made for the next power of two rows; batches slice what they need.


def _capacity(part: _Part) -> int:
    return 1 << (part.size - 1).bit_length()


@lru_cache(maxsize=16)
def _repeated(value: str | int, kind: pa.DataType, count: int) -> pa.Array:
    return pa.repeat(pa.scalar(value, kind), count)


@lru_cache(maxsize=16)
def _empty(kind: pa.DataType, count: int) -> pa.Array:
    offsets, nothing = pa.repeat(pa.scalar(0, pa.int32()), count + 1), pa.array([], pa.string())
    if pa.types.is_map(kind):
        return pa.MapArray.from_arrays(offsets, nothing, nothing, kind)
    return pa.ListArray.from_arrays(offsets, nothing, kind)


@lru_cache(maxsize=16)
def _counting(count: int) -> pa.Array:
    return pa.array(range(count), pa.int64())


@lru_cache(maxsize=4)
def _blank_ids(count: int) -> pa.Array:
    return pa.array([f"{index:0{_ID_LENGTH}x}" for index in range(count)], pa.string())
