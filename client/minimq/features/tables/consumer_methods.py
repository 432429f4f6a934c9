"""Methods of pull consumers for tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from minimq.consuming.pull_consumer import BasePullConsumer
from minimq.features.tables import check_pyarrow

if TYPE_CHECKING:
    import pyarrow as pa


class ArrowPolling(BasePullConsumer):
    """Lets `minimq.PullConsumer` return Arrow tables."""

    def poll_arrow(
        self, timeout: float = 1.0, max_messages: int = 1 << 16, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """Return messages as an Arrow table, all of one queue and in order; an empty one if none arrived in time.

        Needs `minimq[arrow]`. It is a `poll`: its messages are in flight, and are committed in the same way. Bodies are
        not copied.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: maximum number of messages to return.
            columns: some of `minimq.arrow.MESSAGE_SCHEMA`; all when None.

        Raises:
            InvalidArgument: there is no such column.
            CorruptBatch: a column of a batch contradicts itself; `seek` behind it to go on.
            MinimqError: what `poll` raises.
        """
        check_pyarrow()
        from minimq.features.tables.columns import ArrowColumns, chosen_columns

        made = ArrowColumns(chosen_columns(columns))
        self._keeps_batches = True
        return made.table(self.poll(timeout, max_messages))


class AsyncArrowPolling(BasePullConsumer):
    """Lets `minimq.aio.PullConsumer` return Arrow tables."""

    async def poll_arrow(
        self, timeout: float = 1.0, max_messages: int = 1 << 16, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """Return messages as an Arrow table; see `minimq.PullConsumer.poll_arrow`."""
        check_pyarrow()
        from minimq.features.tables.columns import ArrowColumns, chosen_columns

        made = ArrowColumns(chosen_columns(columns))
        self._keeps_batches = True
        return made.table(await self.poll(timeout, max_messages))
