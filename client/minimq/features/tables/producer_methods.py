"""The method of producers for Arrow tables."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from minimq.features.tables import check_pyarrow
from minimq.sending.producer import BaseProducer
from minimq.sending.receipt import BatchReceipt

if TYPE_CHECKING:
    from minimq.features.tables.row_writer import OnRejected


class ArrowRows(BaseProducer):
    """The method of `minimq.Producer`."""

    def send_arrow(
        self, topic: str | None, rows: object, *, on_rejected: OnRejected | None = None
    ) -> list[BatchReceipt]:
        """Send the rows of an Arrow table as messages, and wait until all are on disk.

        Needs `minimq[arrow]`. Bodies are copied once, into the batches that are sent. Interceptors do not see the rows.
        Rows cannot be delayed, nor sent to a FIFO topic. In a compacted topic, a null body is a tombstone.

        Args:
            topic: the topic of all rows; None if there is a column `topic`.
            rows: a pyarrow table, record batch or `RecordBatchReader`, which is read as it is sent; or another object
                with Arrow's C stream interface, such as a data frame of Polars or pandas. Columns: `body`, and any of
                `tag`, `keys`, `properties`, `sharding_key`, `queue_id` and `broker_name`; see docs/arrow.md.
            on_rejected: called with each invalid row, as a record batch of one row, and the reason; the other rows are
                sent. By default, the first invalid row raises `InvalidArgument`. A body over the broker's limit, but
                not over `max_body_bytes`, still raises.

        Returns:
            The receipts of the batches, in the order in which they were sent. Each has its queue, the offset of its
            first message and their number.

        Raises:
            InvalidArgument: a column is missing or has a wrong type, or a row is invalid; some of the earlier rows were
                sent.
            TopicNotFound: no broker carries the topic.
            TopicUnavailable, Unavailable: the topic was not found within `send_timeout_s`.
            BufferFull: the buffer is full, and `block_when_full` is off.
            SendFailed: a batch was not acknowledged; the error has the numbers of rows that are stored, may be stored,
                and are not. Further rows were not read.
            Closed: the producer was closed.
        """
        check_pyarrow()
        from minimq.features.tables.row_writer import send_rows

        return send_rows(self._core, topic, rows, on_rejected)


class AsyncArrowRows(BaseProducer):
    """The method of `minimq.aio.Producer`."""

    async def send_arrow(
        self, topic: str | None, rows: object, *, on_rejected: OnRejected | None = None
    ) -> list[BatchReceipt]:
        """Send the rows of an Arrow table as messages, on a thread; see `minimq.Producer.send_arrow`.

        If it is cancelled, the rows are still sent.
        """
        check_pyarrow()
        from minimq.features.tables.row_writer import send_rows

        return await asyncio.to_thread(send_rows, self._core, topic, rows, on_rejected)
