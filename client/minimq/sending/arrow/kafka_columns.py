"""The columns of Spark's Kafka sink, in place of those that they stand for: `value`, `key` and `headers`."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from minimq.sending.arrow.text_columns import checked_text, refused, shown, with_small_offsets


def renamed(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return columns under the names that minimq has.

    A `key` says the queue, as `sharding_key`, and is also what the message is found by, as `keys`.

    Raises:
        InvalidArgument: a key or a header is no text, or a row has two headers of one name.
    """
    named = dict(columns)
    if "value" in named:
        named["body"] = named.pop("value")
    if "key" in named:
        named["keys"] = named["sharding_key"] = _text("key", named.pop("key"))
    if "headers" in named:
        headers = named.pop("headers")
        named["properties"] = headers if pa.types.is_map(headers.type) else _properties(headers)
    return named


def _properties(headers: pa.Array) -> pa.Array:
    """Return a list of structures as a map."""
    if headers.null_count:
        headers = headers.take(pa.array(range(len(headers))))  # so that a null has no entries
    first, last = headers.offsets[0].as_py(), headers.offsets[-1].as_py()
    entries = headers.values.slice(first, last - first)
    names, values = pc.struct_field(entries, [0]), pc.struct_field(entries, [1])
    if entries.null_count or names.null_count:
        raise refused("headers", "has a header without a name in a row: take it out with filter")
    names = checked_text("headers", names)
    _refuse_repeated(names, pc.list_parent_indices(headers))
    offsets = pc.subtract(headers.offsets, pa.scalar(first, pa.int32()))
    return pa.MapArray.from_arrays(offsets, names, _text("headers", values))


def _refuse_repeated(names: pa.Array, rows: pa.Array) -> None:
    """Refuse a row with two headers of one name, of which a map keeps one."""
    codes = names.dictionary_encode().indices.cast(pa.int64())
    places = pc.add(pc.multiply(rows.cast(pa.int64()), len(names) + 1), codes)
    counts = pc.value_counts(places)
    if len(counts) < len(places):
        twice = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
        name = names[pc.index(places, twice).as_py()].as_py()
        raise refused("headers", f"has {shown(name)} twice in a row: properties have each name once; keep one of them")


def _text(name: str, column: pa.Array) -> pa.Array:
    """Return text or bytes as text."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pc.cast(with_small_offsets(column), pa.string(), safe=False)
    return checked_text(name, column)
