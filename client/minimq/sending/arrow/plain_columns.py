"""Columns of any library in the few types in which rows are sent."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from minimq.sending.arrow.kafka_columns import refuse_repeated
from minimq.sending.arrow.text_columns import refused


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
