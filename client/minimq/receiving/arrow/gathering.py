"""Small Arrow batches, which are put together: each costs its reader, such as Java, as much as some hundred rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

#: How many records, and how many bytes, are put together at most.
MERGED_RECORDS: Final = 4096
MERGED_BYTES: Final = 1 << 20
#: Arrow batches with fewer rows and fewer bytes than this are put together: it costs as much to copy so many bytes.
ENOUGH_ROWS: Final = 1024
ENOUGH_BYTES: Final = 256 << 10


def gathered(pieces: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows of Arrow batches in their order, those of small ones together."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for piece in pieces:
        is_enough = piece.num_rows >= ENOUGH_ROWS or piece.nbytes >= ENOUGH_BYTES
        if not is_enough:
            waiting.append(piece)
            rows, size = rows + piece.num_rows, size + piece.nbytes
            if rows < MERGED_RECORDS and size < MERGED_BYTES:
                continue
        if waiting:
            yield _together(waiting, schema)
            waiting, rows, size = [], 0, 0
        if is_enough:
            yield piece
    if waiting:
        yield _together(waiting, schema)


def _together(parts: list[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatch:
    if len(parts) == 1:
        return parts[0]
    [whole] = pa.Table.from_batches(parts, schema).combine_chunks().to_batches()
    return whole
