"""Columns of text to write, and errors about columns that cannot be written."""

from __future__ import annotations

from typing import Final

import pyarrow as pa

from minimq_common.errors import InvalidArgument

#: Characters of a value that are shown of it.
_SHOWN: Final = 40


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
