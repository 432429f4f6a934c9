"""Converts Arrow columns to stored batches, without any work per row.

The reverse of `columns.py`: a section is a slice of an Arrow buffer. It is copied once, when the batch is assembled.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final, Literal

import pyarrow as pa
import pyarrow.compute as pc

from minimq.features.tables.row_columns import checked_text, rejected, with_small_offsets
from minimq.features.tables.sections import fixed_section, variable_sections
from minimq_common.batch.builder import BatchColumns, check_metadata, tag_section
from minimq_common.batch.compression import Compression
from minimq_common.batch.header import MAX_METADATA, SEPARATOR, Section
from minimq_common.errors import MinimqError

#: Most rows in one batch.
MAX_ROWS: Final = 1 << 16

_NUL: Final = SEPARATOR.encode()
_KEYS: Final = pa.list_(pa.string())
_NO_BYTES: Final = pa.scalar(0, pa.int32())


def cut(rows: pa.RecordBatch, batch_bytes: int) -> Iterator[pa.RecordBatch]:
    """Yield all rows, at least one, in parts of at most `batch_bytes`, or of a single row."""
    count, size = rows.num_rows, rows.nbytes
    if count == 1 or (size <= batch_bytes and count <= MAX_ROWS):
        yield rows
        return
    parts = min(max(-(-size // batch_bytes), -(-count // MAX_ROWS)), count)
    bounds = [count * part // parts for part in range(parts + 1)]
    for start, end in pairwise(bounds):
        yield from cut(rows.slice(start, end - start), batch_bytes)


def to_batch(rows: pa.RecordBatch, max_body_bytes: int, compression: Compression | None = None) -> BatchColumns:
    """Convert rows, at least one, to a batch."""
    sections = [b""] * len(Section)
    largest = _bodies(sections, rows.column("body"), max_body_bytes)
    names = rows.schema.names
    hashes: list[int] | None = [0]
    if "tag" in names:
        hashes = _tags(sections, rows.column("tag"))
    if "keys" in names:
        _keys(sections, rows.column("keys"))
    if "properties" in names:
        _properties(sections, rows.column("properties"))
    return BatchColumns(
        sections=sections, count=rows.num_rows, largest_body=largest, tag_hashes=hashes, compression=compression
    )


def _bodies(sections: list[bytes], column: pa.Array, max_body_bytes: int) -> int:
    if column.null_count:
        raise rejected("body", "is null in a row: filter it out, or make it empty (in Spark: coalesce)")
    sections[Section.BODY_OFFSETS], sections[Section.BODIES] = variable_sections(with_small_offsets(column))
    sizes = pc.min_max(pc.binary_length(column)).as_py()
    if sizes["max"] > max_body_bytes:
        raise rejected(
            "body",
            f"has {sizes['max']} bytes in a row, the limit is {max_body_bytes}: split it, or raise max_body_bytes "
            "(in Spark: maxBodyBytes), and --max-body-bytes of the brokers",
        )
    return int(sizes["max"])


def _tags(sections: list[bytes], column: pa.Array) -> list[int] | None:
    if column.null_count == len(column):
        return [0]
    encoded = checked_text("tag", column.fill_null("")).dictionary_encode()
    _reject_nul("tag", encoded.dictionary)
    _limit("tag", pc.utf8_length(encoded.dictionary))
    order = pc.sort_indices(encoded.dictionary)
    tags = encoded.dictionary.take(order).to_pylist()
    if tags == [""]:
        return [0]
    sections[Section.TAG_DICTIONARY], hashes = tag_section(tags)  # never too many: there are at most as many as rows
    if len(tags) > 1:
        places = pc.sort_indices(order)  # position of each tag in the sorted dictionary
        codes = places.take(encoded.indices).cast(pa.uint8() if len(tags) <= 1 << 8 else pa.uint16())
        sections[Section.TAG_CODES] = fixed_section(codes)
    return hashes


def _keys(sections: list[bytes], column: pa.Array) -> None:
    joined = column
    if pa.types.is_list(column.type):
        column = column.cast(_KEYS)
        keys = column.flatten()
        if keys.null_count:
            raise rejected("keys", "has a key that is null in a row: take it out (in Spark: array_compact)")
        if len(keys) == 0:
            return
        _reject_nul("keys", checked_text("keys", keys))
        if pc.any(pc.equal(pc.binary_length(keys), _NO_BYTES)).as_py():
            raise rejected("keys", "has an empty key in a row: take it out (in Spark: array_remove(keys, ''))")
        one_each = pc.all(pc.equal(pc.list_value_length(column), pa.scalar(1, pa.int32())))
        is_joined = not column.null_count and one_each.as_py()
        joined = keys if is_joined else pc.binary_join(column, pa.scalar(SEPARATOR, pa.string()))
    else:
        _reject_nul("keys", checked_text("keys", column))
    if joined.null_count == len(joined):
        return
    joined = with_small_offsets(joined.fill_null("") if joined.null_count else joined)
    if pc.max(pc.binary_length(joined)).as_py() == 0:
        return
    if pc.max(pc.binary_length(joined)).as_py() > MAX_METADATA:  # bytes first: never fewer than characters, and cheaper
        _limit("keys", pc.utf8_length(joined))
    sections[Section.KEY_OFFSETS], sections[Section.KEYS] = variable_sections(joined)


def _properties(sections: list[bytes], column: pa.Array) -> None:
    if column.null_count:
        column = column.take(pa.array(range(len(column))))  # a copy in which nulls have no entries
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    if first == last:
        return
    names = checked_text("properties", column.keys.slice(first, last - first))
    values = column.items.slice(first, last - first)
    if values.null_count:
        raise rejected("properties", "has a value that is null in a row: take it out (in Spark: map_filter)")
    values = checked_text("properties", values)
    offsets = pc.subtract(offsets, pa.scalar(first, pa.int32()))
    sections[Section.PROPERTY_OFFSETS] = fixed_section(offsets)
    sections[Section.NAME_OFFSETS], sections[Section.NAMES] = variable_sections(names)
    sections[Section.VALUE_OFFSETS], sections[Section.VALUES] = variable_sections(values)
    # Bytes first: never fewer than characters, and cheaper to count.
    if pc.max(_sums(offsets, pc.add(pc.binary_length(names), pc.binary_length(values)))).as_py() > MAX_METADATA:
        _limit("properties", _sums(offsets, pc.add(pc.utf8_length(names), pc.utf8_length(values))))


def _limit(column: Literal["tag", "keys", "properties"], characters: pa.Array) -> None:
    try:
        check_metadata(pc.max(characters).as_py(), column)
    except MinimqError as error:
        raise rejected(column, f"cannot be written in a row: {error.message}") from None


def _sums(offsets: pa.Array, lengths: pa.Array) -> pa.Array:
    ends = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths.cast(pa.int64()))])
    bounds = ends.take(offsets)
    return pc.subtract(bounds[1:], bounds[:-1])


def _reject_nul(column: str, texts: pa.Array) -> None:
    _, content = variable_sections(texts.drop_null())
    if _NUL in bytes(content):
        raise rejected(column, "has a NUL character in a row: take it out (in Spark: replace(..., char(0), ''))")
