"""The columns that rows may have which are sent."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import pyarrow as pa

from minimq.sending.arrow.row_columns import as_plain, is_any_list
from minimq_common.errors import InvalidArgument

_LIST_OF_TEXT: Final = pa.list_(pa.string())
_MAP_OF_TEXT: Final = pa.map_(pa.string(), pa.string())

#: What brokers decide.
_READ_ONLY: Final = ("offset", "message_id", "born_timestamp", "store_timestamp")
#: What stands for others, as in Kafka.
_STANDS_FOR: Final = (("value", "body"), ("key", "keys"), ("key", "sharding_key"), ("headers", "properties"))
#: How pandas calls an index without a name: the numbers of rows that a filter has left, which are no content.
_PANDAS_INDEX: Final = "__index_level_"
#: Rows that are taken over at a time.
_MOST_ROWS: Final = 1 << 16


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind))


def _text(kind: pa.DataType) -> pa.DataType | None:
    return pa.string() if _is_text(kind) else None


def _content(kind: pa.DataType) -> pa.DataType | None:
    if _is_bytes(kind) or pa.types.is_fixed_size_binary(kind):
        return pa.binary()
    return _text(kind)


def _number(kind: pa.DataType) -> pa.DataType | None:
    return pa.int64() if pa.types.is_integer(kind) else None


def _list_of_text(kind: pa.DataType) -> pa.DataType | None:
    if is_any_list(kind):
        value = kind.value_type.value_type if pa.types.is_dictionary(kind.value_type) else kind.value_type
        return _LIST_OF_TEXT if _is_text(value) or pa.types.is_null(value) else None
    return _text(kind)


def _pairs(kind: pa.DataType) -> pa.DataType | None:
    if pa.types.is_map(kind):
        return _MAP_OF_TEXT if _is_text(kind.key_type) and _is_text(kind.item_type) else None
    pair = kind.value_type if is_any_list(kind) else None
    if pair is not None and pa.types.is_struct(pair) and pair.num_fields == 2:
        name, value = pair[0], pair[1]
        if _is_text(name.type) and (content := _content(value.type)):
            return pa.list_(pa.struct([(name.name, pa.string()), (value.name, content)]))
    return None


def _sharding_key(kind: pa.DataType) -> pa.DataType | None:
    return pa.uint64() if pa.types.is_uint64(kind) else _number(kind) or _content(kind)  # such are hashes of Polars


#: The type that a column is taken as, None for a refused one; and the types to choose from, for errors.
_COLUMNS: Final[dict[str, tuple[Callable[[pa.DataType], pa.DataType | None], str]]] = {
    "topic": (_text, "text"),
    "body": (_content, "bytes or text"),
    "value": (_content, "bytes or text"),
    "key": (_content, "text or bytes"),
    "headers": (_pairs, "a map, or a list of structures with a name and a value"),
    "tag": (_text, "text"),
    "keys": (_list_of_text, "a list of text, or text"),
    "properties": (_pairs, "a map of text, or a list of structures with a name and a value"),
    "queue_id": (_number, "whole numbers"),
    "broker_name": (_text, "text"),
    "sharding_key": (_sharding_key, "text, bytes or whole numbers"),
}


def checked_rows(rows: object, *, has_topic: bool) -> Iterator[pa.RecordBatch]:
    """Yield rows in the types in which they are sent."""
    reader = _reader(rows)
    names = [name for name in reader.schema.names if not name.startswith(_PANDAS_INDEX)]
    places = [place for place, name in enumerate(reader.schema.names) if not name.startswith(_PANDAS_INDEX)]
    schema = _target(names, [reader.schema.field(place).type for place in places], has_topic=has_topic)
    for batch in reader:
        for first in range(0, batch.num_rows, _MOST_ROWS):
            part = batch.slice(first, _MOST_ROWS)
            columns = [
                as_plain(field.name, part.column(place), field.type)
                for place, field in zip(places, schema, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _reader(rows: object) -> pa.RecordBatchReader:
    if isinstance(rows, pa.RecordBatchReader):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.RecordBatchReader.from_batches(rows.schema, [rows])
    try:
        if hasattr(rows, "__arrow_c_stream__"):
            return pa.RecordBatchReader.from_stream(rows)
        if hasattr(rows, "__arrow_c_array__"):
            batch = pa.record_batch(rows)
            return pa.RecordBatchReader.from_batches(batch.schema, [batch])
    except pa.ArrowException as error:  # a series of Polars, or what has two types in one column
        raise InvalidArgument(f"rows are no table: {str(error).splitlines()[0]}") from None
    raise InvalidArgument(
        f"rows are {type(rows).__name__}: give an Arrow table or record batch, or a data frame of Polars or pandas"
    )


def _target(given: Sequence[str], kinds: Sequence[pa.DataType], *, has_topic: bool) -> pa.Schema:
    names = [name.lower() for name in given]
    for name in names:
        _check_name(name, names)
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
    if "body" not in names and "value" not in names:
        raise InvalidArgument("there is no column 'body': each message has one")
    if "topic" not in names and not has_topic:
        raise InvalidArgument("no topic is given: give one for all rows, or a column 'topic'")
    if "broker_name" in names and "queue_id" not in names:
        raise InvalidArgument("there is a column 'broker_name' without 'queue_id': add that, or drop it")
    return pa.schema(fields)


def _check_name(name: str, names: list[str]) -> None:
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
    if names.count(name) > 1:
        raise InvalidArgument(f"column {name!r} appears twice: drop one of them")
    for alias, stands_for in _STANDS_FOR:
        if name == alias and stands_for in names:
            raise InvalidArgument(
                f"there is a column {stands_for!r} and a column {alias!r}, which stands for it: drop one"
            )
