"""The table that the changes of a compacted topic add up to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

#: Rows that have come since the last look at which are the newest; memory is that of so many, or of twice the table.
_FEWEST_ROWS: Final = 1 << 20


def newest_of_each_key(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return of each key the last row, in the order of these rows; of a key whose last row is a tombstone none.

    Args:
        batches: with the columns `keys` and `body`. All rows with one key come in the order in which they were sent.
        schema: of the batches.
    """
    table, waiting, rows = pa.Table.from_batches([], schema), list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= max(_FEWEST_ROWS, table.num_rows):
            table = _newest(pa.concat_tables([table, pa.Table.from_batches(waiting)]))
            waiting, rows = [], 0
    table = _newest(pa.concat_tables([table, pa.Table.from_batches(waiting, schema)]))
    return table.filter(pc.greater(pc.binary_length(table["body"]), 0))


def _newest(table: pa.Table) -> pa.Table:
    if table.num_rows == 0:
        return table
    keyed = pc.greater(pc.list_value_length(table["keys"]), 0)
    if not pc.all(keyed).as_py():  # a message that was sent before the topic was compacted
        table = table.filter(keyed)
    numbered = pa.table({"key": pc.list_element(table["keys"], 0), "row": pa.array(range(table.num_rows), pa.int64())})
    last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
    return table.take(last.take(pc.sort_indices(last)))
