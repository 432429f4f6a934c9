"""Validates the columns of rows from any library, and converts them to the types in which they are sent.

Accepts alternatives: `value`, `key` and `headers` as in Kafka, and lists in place of maps. Keys and headers of Kafka
are bytes, and a header may occur twice: `minimq.kafka` converts them to text.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from minimq.features.tables.column_names import check_names
from minimq.kafka import properties_of, text_of
from minimq_common.errors import InvalidArgument

#: Names and texts that `minimq.kafka` would change: a name with this ending, a text with this beginning or a NUL.
_SHOWN: Final = 40
_NUMBERED_NAME = r"#\d+$"
_ESCAPED_TEXT = r"\x00|^base64:|^null:"


def checked_text(name: str, column: pa.Array) -> pa.Array:
    """Return a column of text with 32-bit offsets. Validates UTF-8, as neither Arrow nor Spark does."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise rejected(name, "is no text in UTF-8 in a row: repair it (in Spark: make_valid_utf8)") from None
    return with_small_offsets(column)


def with_small_offsets(column: pa.Array) -> pa.Array:
    """Return a column of text or bytes with 32-bit offsets; other columns unchanged."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def rejected(column: str, reason: str) -> InvalidArgument:
    """Return the error for an invalid row."""
    return InvalidArgument(f"column {column!r} {reason}")


# ---- types ------------------------------------------------------------------------------------------


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def as_plain(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    try:
        plain = _cast(column, kind)
    except pa.ArrowException as error:
        raise rejected(name, f"cannot be sent: {str(error).splitlines()[0]}") from None
    if pa.types.is_map(plain.type):
        _check_map(name, plain)
    return plain


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.dictionary(column.type.index_type, kind)).dictionary_decode()
    return column.cast(kind)


def _check_map(name: str, maps: pa.Array) -> None:
    if maps.null_count:
        maps = maps.take(pa.array(range(len(maps))))  # a copy in which nulls have no entries
    offsets = maps.offsets
    lists = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), _entries(maps))  # with a map, pyarrow crashes
    reject_repeated(name, lists.flatten(), pc.list_parent_indices(lists))


def _entries(maps: pa.Array) -> pa.Array:
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return maps.keys.slice(first, last - first)


# ---- Kafka's names ----------------------------------------------------------------------------------


def renamed(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Rename Kafka's columns to those of minimq. A `key` becomes both `sharding_key` and `keys`."""
    named = dict(columns)
    if "value" in named:
        named["body"] = named.pop("value")
    if "key" in named:
        named["keys"] = named["sharding_key"] = _keys(named.pop("key"))
    for name in ("headers", "properties"):
        if name in named:
            column = named.pop(name)
            named["properties"] = column if pa.types.is_map(column.type) else _map_of(name, column)
    return named


def _keys(column: pa.Array) -> pa.Array:
    if not pa.types.is_binary(column.type) and not pa.types.is_large_binary(column.type):
        return checked_text("key", column)
    column = with_small_offsets(column)
    has_empty = pc.any(pc.equal(pc.binary_length(column), pa.scalar(0, pa.int32()))).as_py()
    if has_empty or (text := _plain_text(column)) is None:
        keys = column.to_pylist()
        return pa.array([None if key is None else text_of(key) or "base64:" for key in keys], pa.string())
    return text


def _map_of(column: str, pairs: pa.Array) -> pa.Array:
    if pairs.null_count:
        pairs = pairs.take(pa.array(range(len(pairs))))  # a copy in which nulls have no entries
    first, last = pairs.offsets[0].as_py(), pairs.offsets[-1].as_py()
    entries = pairs.values.slice(first, last - first)
    names, values = pc.struct_field(entries, [0]), pc.struct_field(entries, [1])
    if entries.null_count or names.null_count:
        raise rejected(column, "has an entry without a name in a row: take it out with filter")
    names, rows = checked_text(column, names), pc.list_parent_indices(pairs)
    offsets = pc.subtract(pairs.offsets, pa.scalar(first, pa.int32()))
    if column == "properties":
        reject_repeated(column, names, rows)
        if pa.types.is_binary(values.type) or pa.types.is_large_binary(values.type):
            values = pc.cast(with_small_offsets(values), pa.string(), safe=False)
        return pa.MapArray.from_arrays(offsets, names, checked_text(column, values))
    text = None if values.null_count else _plain_text(values)
    if (
        text is None
        or repeated(names, rows) is not None
        or pc.any(pc.match_substring_regex(names, _NUMBERED_NAME)).as_py()
    ):
        headers = zip(names.to_pylist(), values.cast(pa.binary()).to_pylist(), strict=True)
        numbers = offsets.to_pylist()
        properties = [properties_of(islice(headers, end - start)) for start, end in pairwise(numbers)]
        return pa.array([list(row.items()) for row in properties], pa.map_(pa.string(), pa.string()))
    return pa.MapArray.from_arrays(offsets, names, text)


def _plain_text(values: pa.Array) -> pa.Array | None:
    text = pc.cast(with_small_offsets(values), pa.string(), safe=False)
    try:
        text.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return None if pc.any(pc.match_substring_regex(text, _ESCAPED_TEXT)).as_py() else text


def reject_repeated(column: str, names: pa.Array, rows: pa.Array) -> None:
    """Raise an error if a row has a name twice: readers would see only one of them."""
    if (name := repeated(names, rows)) is not None:
        raise rejected(
            column, f"has {name[:_SHOWN]!r} twice in a row: properties have each name once; keep one of them"
        )


def repeated(names: pa.Array, rows: pa.Array) -> str | None:
    """Return a name that a row has twice; None if there is none."""
    codes = names.dictionary_encode().indices.cast(pa.int64())
    places = pc.add(pc.multiply(rows.cast(pa.int64()), pa.scalar(len(names) + 1, pa.int64())), codes)
    counts = pc.value_counts(places)
    if len(counts) == len(places):
        return None
    twice = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
    name: str = names[pc.index(places, twice).as_py()].as_py()
    return name


# ---- accepted columns --------------------------------------------------------------------------------

_LIST_OF_TEXT: Final = pa.list_(pa.string())
_MAP_OF_TEXT: Final = pa.map_(pa.string(), pa.string())

#: Columns that only brokers set.
_READ_ONLY: Final = ("offset", "message_id", "born_timestamp", "store_timestamp")
#: Prefix of an unnamed index of pandas: it numbers the rows that a filter has left, and is not content.
_PANDAS_INDEX: Final = "__index_level_"
#: Rows that are converted at a time.
_MAX_ROWS: Final = 1 << 16


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _as_text(kind: pa.DataType) -> pa.DataType | None:
    return pa.string() if _is_text(kind) else None


def _content(kind: pa.DataType) -> pa.DataType | None:
    if _is_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _as_text(kind)


def _number(kind: pa.DataType) -> pa.DataType | None:
    return pa.int64() if pa.types.is_integer(kind) else None


def _list_of_text(kind: pa.DataType) -> pa.DataType | None:
    if _is_list(kind):
        return _LIST_OF_TEXT if _is_text(kind.value_type) or pa.types.is_null(kind.value_type) else None
    return _as_text(kind)


def _pairs(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(kind):
        return _MAP_OF_TEXT if _is_text(kind.key_type) and _is_text(kind.item_type) else None
    pair = kind.value_type if _is_list(kind) else None
    if pair is not None and pa.types.is_struct(pair) and pair.num_fields == 2:
        name, value = pair[0], pair[1]
        if _is_text(name.type) and (content := _content(value.type)):
            return pa.list_(pa.struct([(name.name, pa.string()), (value.name, content)]))
    return None


def _sharding_key(kind: pa.DataType) -> pa.DataType | None:
    return pa.uint64() if pa.types.is_uint64(kind) else _number(kind) or _content(kind)  # Polars' hashes are uint64


#: By name: the function that returns the type to convert a column to, None if not accepted; accepted types for errors.
_COLUMNS: Final[dict[str, tuple[Callable[[pa.DataType], pa.DataType | None], str]]] = {
    "topic": (_as_text, "text"),
    "body": (_content, "bytes or text"),
    "value": (_content, "bytes or text"),
    "key": (_content, "text or bytes"),
    "headers": (_pairs, "a map, or a list of structures with a name and a value"),
    "tag": (_as_text, "text"),
    "keys": (_list_of_text, "a list of text, or text"),
    "properties": (_pairs, "a map of text, or a list of structures with a name and a value"),
    "queue_id": (_number, "whole numbers"),
    "broker_name": (_as_text, "text"),
    "sharding_key": (_sharding_key, "text, bytes or whole numbers"),
}


def checked_rows(rows: object, *, has_topic: bool) -> Iterator[pa.RecordBatch]:
    """Yield rows, converted to the types in which they are sent."""
    reader = _reader(rows)
    names = [name for name in reader.schema.names if not name.startswith(_PANDAS_INDEX)]
    places = [place for place, name in enumerate(reader.schema.names) if not name.startswith(_PANDAS_INDEX)]
    schema = _target(names, [reader.schema.field(place).type for place in places], has_topic=has_topic)
    for batch in reader:
        for first in range(0, batch.num_rows, _MAX_ROWS):
            part = batch.slice(first, _MAX_ROWS)
            columns = [
                as_plain(field.name, part.column(place), field.type)
                for place, field in zip(places, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _reader(rows: object) -> pa.RecordBatchReader:
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
        if hasattr(rows, "__arrow_c_array__"):
            batch = pa.record_batch(rows)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except pa.ArrowException as error:  # a Polars series, or a column of mixed types
        raise InvalidArgument(f"rows are no table: {str(error).splitlines()[0]}") from None
    raise InvalidArgument(
        f"rows are {type(rows).__name__}: give an Arrow table or record batch, or a data frame of Polars or pandas"
    )


def _target(given: Sequence[str], kinds: Sequence[pa.DataType], *, has_topic: bool) -> pa.Schema:
    names = [name.lower() for name in given]
    for name in names:
        _check_name(name)
    check_names(names, has_topic=has_topic)
    fields = []
    for name, of_column in zip(names, kinds, strict=True):
        kind = of_column.value_type if pa.types.is_dictionary(of_column) else of_column
        take, wanted = _COLUMNS[name]
        taken = pa.string() if pa.types.is_null(kind) and name != "queue_id" else take(kind)
        if pa.types.is_null(kind) and name in {"properties", "headers"}:
            taken = _MAP_OF_TEXT
        if taken is None:
            raise InvalidArgument(f"column {name!r} is of type {of_column}: it must be {wanted}")
        fields.append((name, taken))
    return pa.schema(fields)


def _check_name(name: str) -> None:
    if name in _READ_ONLY:
        raise InvalidArgument(f"column {name!r} is set by brokers and cannot be sent: drop it")
    if name not in _COLUMNS:
        near = difflib.get_close_matches(name, _COLUMNS, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        known = ", ".join(_COLUMNS)
        raise InvalidArgument(
            f"column {name!r} cannot be sent: {hint}a message has {known}; put everything else into 'body' or "
            "'properties'"
        )
