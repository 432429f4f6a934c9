"""Stored batches as Arrow batches, for comparisons with their messages."""

from __future__ import annotations

from unittest.mock import patch

import pyarrow as pa

from minimq.consuming.received import ReceivedBatch
from minimq.features.tables import columns as arrow_columns
from minimq.features.tables.columns import ArrowColumns


def by_columns(columns: ArrowColumns, batch: ReceivedBatch) -> pa.RecordBatch:
    """Return the records of a batch, as if no batch were small."""
    with patch.object(arrow_columns, "SMALL_BATCH", 0):
        [made] = columns.pieces([batch], 0, 1 << 62)
    return made
