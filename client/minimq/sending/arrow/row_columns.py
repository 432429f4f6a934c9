"""Columns of any library in the few forms in which rows are sent, and errors about those that cannot be.

Some say the same in another way: `value`, `key` and `headers` as in Kafka, and lists in place of maps. Keys and headers
of Kafka are bytes, and a header may occur twice: `minimq.kafka` writes them as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from minimq.kafka import properties_of, text_of
from minimq_common.errors import InvalidArgument

#: Characters of a value that are shown of it.
_SHOWN: Final = 40
#: What `minimq.kafka` does not leave as it is: a name that ends like that, a text that begins so or has a NUL.
_NUMBERED_NAME = r"#\d+$"
_ESCAPED_TEXT = r"\x00|^base64:|^null:"


def checked_text(name: str, column: pa.Array) -> pa.Array:
    """Return a column of text with offsets of 32 bits. Neither Arrow nor Spark sees to it that text is UTF-8."""
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        wrong = shown(_first_wrong(column))
        raise refused(
            name, f"is no text in UTF-8 in a row, but {wrong}: repair it (in Spark: make_valid_utf8)"
        ) from None
    return with_small_offsets(column)


def with_small_offsets(column: pa.Array) -> pa.Array:
    """Return a column of text or bytes with offsets of 32 bits, others as they are."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def shown(value: str | bytes) -> str:
    """Return a value as it stands in an error: in one line, and not all of it when it is long."""
    return repr(value) if len(value) <= _SHOWN else f"{value[:_SHOWN]!r}..."


def _first_wrong(column: pa.Array) -> bytes:
    for value in column:
        if value.is_valid:
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                return error.object
    return b""


def refused(column: str, reason: str) -> InvalidArgument:
    """Return the error for a row that makes no message."""
    return InvalidArgument(f"column {column!r} {reason}")


# ---- types ------------------------------------------------------------------------------------------


def is_any_list(kind: pa.DataType) -> bool:
    """Tell whether a column has lists, however they are laid out."""
    return bool(
        pa.types.is_list(kind)
        or pa.types.is_large_list(kind)
        or pa.types.is_fixed_size_list(kind)
        or pa.types.is_list_view(kind)
        or pa.types.is_large_list_view(kind)
    )


def as_plain(name: str, column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Return a column in the type in which it is sent."""
    try:
        plain = _cast(column, kind)
    except pa.ArrowException as error:
        raise refused(name, f"cannot be sent: {str(error).splitlines()[0]}") from None
    if pa.types.is_map(plain.type):
        _check_map(name, plain)
    return plain


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    if column.type == kind:
        return column
    if pa.types.is_dictionary(column.type):
        return column.cast(pa.dictionary(column.type.index_type, kind)).dictionary_decode()
    if pa.types.is_list_view(column.type) or pa.types.is_large_list_view(column.type):
        column = _list_of_view(column)
    if is_any_list(column.type) and pa.types.is_dictionary(column.type.value_type):
        column = column.cast(pa.list_(pa.dictionary(column.type.value_type.index_type, kind.value_type)))
    return column.cast(kind)


def _list_of_view(column: pa.Array) -> pa.Array:
    lengths = pc.list_value_length(column).fill_null(0).cast(pa.int32())
    offsets = pa.concat_arrays([pa.array([0], pa.int32()), pc.cumulative_sum(lengths)])
    return pa.ListArray.from_arrays(offsets, column.flatten(), mask=column.is_null())


def _check_map(name: str, maps: pa.Array) -> None:
    if maps.null_count:
        maps = maps.take(pa.array(range(len(maps))))  # so that a null has no entries
    offsets = maps.offsets
    lists = pa.ListArray.from_arrays(pc.subtract(offsets, offsets[0]), _entries(maps))  # a map itself ends the process
    refuse_repeated(name, lists.flatten(), pc.list_parent_indices(lists))


def _entries(maps: pa.Array) -> pa.Array:
    first, last = maps.offsets[0].as_py(), maps.offsets[-1].as_py()
    return maps.keys.slice(first, last - first)


# ---- names of Kafka ---------------------------------------------------------------------------------


def renamed(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return columns under the names that minimq has.

    A `key` says the queue, as `sharding_key`, and is also what the message is found by, as `keys`.
    """
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
    if pc.any(pc.equal(pc.binary_length(column), 0)).as_py() or (text := _plain_text(column)) is None:
        keys = column.to_pylist()
        return pa.array([None if key is None else text_of(key) or "base64:" for key in keys], pa.string())
    return text


def _map_of(column: str, pairs: pa.Array) -> pa.Array:
    if pairs.null_count:
        pairs = pairs.take(pa.array(range(len(pairs))))  # so that a null has no entries
    first, last = pairs.offsets[0].as_py(), pairs.offsets[-1].as_py()
    entries = pairs.values.slice(first, last - first)
    names, values = pc.struct_field(entries, [0]), pc.struct_field(entries, [1])
    if entries.null_count or names.null_count:
        raise refused(column, "has an entry without a name in a row: take it out with filter")
    names, rows = checked_text(column, names), pc.list_parent_indices(pairs)
    offsets = pc.subtract(pairs.offsets, pa.scalar(first, pa.int32()))
    if column == "properties":
        refuse_repeated(column, names, rows)
        return pa.MapArray.from_arrays(offsets, names, _text(column, values))
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


def refuse_repeated(column: str, names: pa.Array, rows: pa.Array) -> None:
    """Refuse a row that has one name twice, of which a reader sees one."""
    if (name := repeated(names, rows)) is not None:
        raise refused(column, f"has {shown(name)} twice in a row: properties have each name once; keep one of them")


def repeated(names: pa.Array, rows: pa.Array) -> str | None:
    """Return a name that a row has twice."""
    codes = names.dictionary_encode().indices.cast(pa.int64())
    places = pc.add(pc.multiply(rows.cast(pa.int64()), len(names) + 1), codes)
    counts = pc.value_counts(places)
    if len(counts) == len(places):
        return None
    twice = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
    name: str = names[pc.index(places, twice).as_py()].as_py()
    return name


def _text(name: str, column: pa.Array) -> pa.Array:
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pc.cast(with_small_offsets(column), pa.string(), safe=False)
    return checked_text(name, column)
