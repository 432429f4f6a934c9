"""Columns that say the same in another way: `value`, `key` and `headers` as in Kafka, and lists in place of maps.

Keys and headers of Kafka are bytes, and a header may occur twice: `minimq.kafka` writes them as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice, pairwise

import pyarrow as pa
import pyarrow.compute as pc

from minimq.kafka import properties_of, text_of
from minimq.sending.arrow.text_columns import checked_text, refused, shown, with_small_offsets

#: What `minimq.kafka` does not leave as it is: a name that ends like that, a text that begins so or has a NUL.
_NUMBERED_NAME = r"#\d+$"
_ESCAPED_TEXT = r"\x00|^base64:|^null:"


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
