"""Columns that say the same in another way: `value`, `key` and `headers` as in Kafka, and lists in place of maps."""

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
    for name in ("headers", "properties"):
        if name in named:
            column = named.pop(name)
            named["properties"] = column if pa.types.is_map(column.type) else _map_of(name, column)
    return named


def _map_of(column: str, pairs: pa.Array) -> pa.Array:
    """Return a list of structures as a map."""
    if pairs.null_count:
        pairs = pairs.take(pa.array(range(len(pairs))))  # so that a null has no entries
    first, last = pairs.offsets[0].as_py(), pairs.offsets[-1].as_py()
    entries = pairs.values.slice(first, last - first)
    names, values = pc.struct_field(entries, [0]), pc.struct_field(entries, [1])
    if entries.null_count or names.null_count:
        raise refused(column, "has an entry without a name in a row: take it out with filter")
    names = checked_text(column, names)
    refuse_repeated(column, names, pc.list_parent_indices(pairs))
    offsets = pc.subtract(pairs.offsets, pa.scalar(first, pa.int32()))
    return pa.MapArray.from_arrays(offsets, names, _text(column, values))


def refuse_repeated(column: str, names: pa.Array, rows: pa.Array) -> None:
    """Refuse a row that has one name twice, of which a reader sees one.

    Args:
        column: of these names.
        names: of all properties.
        rows: the row of each.

    Raises:
        InvalidArgument: there is such a row.
    """
    codes = names.dictionary_encode().indices.cast(pa.int64())
    places = pc.add(pc.multiply(rows.cast(pa.int64()), len(names) + 1), codes)
    counts = pc.value_counts(places)
    if len(counts) < len(places):
        twice = counts.field("values")[pc.index(pc.greater(counts.field("counts"), 1), True).as_py()]
        name = names[pc.index(places, twice).as_py()].as_py()
        raise refused(column, f"has {shown(name)} twice in a row: properties have each name once; keep one of them")


def _text(name: str, column: pa.Array) -> pa.Array:
    """Return text or bytes as text."""
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        column = pc.cast(with_small_offsets(column), pa.string(), safe=False)
    return checked_text(name, column)
