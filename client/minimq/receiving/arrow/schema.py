"""The Arrow columns of messages, and the merging of small Arrow batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

import pyarrow as pa

from minimq_common.errors import InvalidArgument

_MOMENT: Final = pa.timestamp("us", tz="UTC")

#: Only the tag may be null. A message without keys or properties has an empty list or map.
MESSAGE_SCHEMA: Final = pa.schema(
    [
        ("topic", pa.string()),
        ("broker_name", pa.string()),
        ("queue_id", pa.int32()),
        ("offset", pa.int64()),
        ("body", pa.binary()),
        ("tag", pa.string()),
        ("keys", pa.list_(pa.string())),
        ("properties", pa.map_(pa.string(), pa.string())),
        ("born_timestamp", _MOMENT),
        ("store_timestamp", _MOMENT),
        ("message_id", pa.string()),
    ]
)


def chosen_columns(columns: Iterable[str] | None) -> pa.Schema:
    """Return the schema of the chosen columns, in their order; None for all."""
    if columns is None:
        return MESSAGE_SCHEMA
    if isinstance(columns, str):
        raise InvalidArgument(f"columns is {columns!r}: give a list, such as [{columns!r}]")
    names = list(columns)
    if not names:
        raise InvalidArgument(f"no column is chosen: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
    for name in names:
        if name not in MESSAGE_SCHEMA.names:
            raise InvalidArgument(f"there is no column {name!r}: choose some of {', '.join(MESSAGE_SCHEMA.names)}")
        if names.count(name) > 1:
            raise InvalidArgument(f"column {name!r} is chosen twice")
    return pa.schema([MESSAGE_SCHEMA.field(name) for name in names])


#: Limits of a merged batch.
MERGED_RECORDS: Final = 4096
MERGED_BYTES: Final = 1 << 20
#: Arrow batches below both limits are merged; for larger ones, the copy costs as much as it saves.
ENOUGH_ROWS: Final = 1024
ENOUGH_BYTES: Final = 256 << 10


def gathered(pieces: Iterable[pa.RecordBatch], schema: pa.Schema) -> Iterator[pa.RecordBatch]:
    """Yield all rows of Arrow batches in order, with small batches merged."""
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
