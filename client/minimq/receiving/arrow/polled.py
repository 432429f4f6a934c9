"""The messages of one poll as an Arrow table."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pyarrow as pa

from minimq.receiving.arrow.columns import ArrowColumns
from minimq.receiving.arrow.schema import chosen_columns
from minimq.receiving.received import ReceivedMessage


class PolledColumns:
    """Makes tables of what polls return."""

    def __init__(self, columns: Iterable[str] | None) -> None:
        self._columns = ArrowColumns(chosen_columns(columns))

    def table(self, messages: Sequence[ReceivedMessage]) -> pa.Table:
        """Return messages of one queue, in their order. Bodies stay in the batches that they came in."""
        return pa.Table.from_batches(self._columns.of_messages(messages), self._columns.schema)
