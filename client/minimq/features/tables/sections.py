"""Conversion between sections of a batch and Arrow arrays, without copying.

A stored batch uses Arrow's layout: 32-bit offsets and consecutive bytes for values of variable length, and the same
fixed-width numbers. So a section is an Arrow buffer, and nothing is done value by value.
"""

from __future__ import annotations

import sys

import pyarrow as pa
import pyarrow.compute as pc

from minimq_common.batch.header import Section
from minimq_common.batch.records import RecordBatch

if sys.byteorder != "little":  # pragma: no cover
    raise ImportError("Arrow's numbers are taken as they are, which is right on little-endian machines only")


def variable_array(records: RecordBatch, kind: pa.DataType, count: int, offsets: Section, values: Section) -> pa.Array:
    """Return a column of text or bytes of a batch. Offsets and contents are not validated."""
    buffers = [None, pa.py_buffer(records.section(offsets)), pa.py_buffer(records.section(values))]
    return pa.Array.from_buffers(kind, count, buffers)


def fixed_array(records: RecordBatch, kind: pa.DataType, count: int, section: Section) -> pa.Array:
    """Return a column of numbers of a batch. Raises `pyarrow.ArrowInvalid` if the section is too short."""
    array = pa.Array.from_buffers(kind, count, [None, pa.py_buffer(records.section(section))])
    array.validate()
    return array


def variable_sections(column: pa.Array) -> tuple[bytes, bytes]:
    """Return offsets, starting at 0, and bytes of a column of text or bytes; with 32-bit offsets, without nulls."""
    count = len(column)
    if count == 0:
        return bytes(4), b""
    _, offsets, content = column.buffers()
    ends = pa.Array.from_buffers(pa.int32(), count + 1, [None, offsets], offset=column.offset)
    first, last = ends[0].as_py(), ends[count].as_py()
    if first:
        ends = pc.subtract(ends, pa.scalar(first, pa.int32()))
    return fixed_section(ends), b"" if content is None else content.slice(first, last - first)


def fixed_section(numbers: pa.Array) -> bytes:
    """Return the bytes of a column of numbers without nulls."""
    width = numbers.type.bit_width // 8
    buffer: bytes = numbers.buffers()[1].slice(numbers.offset * width, len(numbers) * width)
    return buffer
