"""Columns of text that are written, and what is said of a column that cannot be."""

from __future__ import annotations

import pyarrow as pa

from pyspark_minimq.errors import MinimqSourceError


def checked_text(name: str, column: pa.Array) -> pa.Array:
    """Return a column of text with offsets of 32 bits. Spark does not see to it that text is UTF-8.

    Raises:
        MinimqSourceError: it is not; the text names the column.
    """
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        raise refused(name, "is no text in UTF-8 in a row: repair it with make_valid_utf8") from None
    return with_small_offsets(column)


def with_small_offsets(column: pa.Array) -> pa.Array:
    """Return a column of text or bytes with offsets of 32 bits, others as they are."""
    if pa.types.is_large_string(column.type):
        return column.cast(pa.string())
    return column.cast(pa.binary()) if pa.types.is_large_binary(column.type) else column


def refused(column: str, reason: str) -> MinimqSourceError:
    """Return the error for a row that makes no message."""
    return MinimqSourceError(f"column {column!r} {reason}")
