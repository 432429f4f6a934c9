"""Arrow for pyarrow, Polars, pandas and DuckDB: topics as record batches, without a Python object for each message.

Reading: `read`, `read_table` with `RangeOptions`, `MESSAGE_SCHEMA`; consumers have `poll_arrow`
Sending: producers have `send_arrow`

Needs pyarrow: `pip install 'minimq[arrow]'`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import closing

import pyarrow as pa

from minimq.connection.cluster import Cluster
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.features.tables.columns import MESSAGE_SCHEMA, ArrowColumns, chosen_columns
from minimq.features.tables.plan import Bound, QueueRange, newest_of_each_key, planned
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

__all__ = ["MESSAGE_SCHEMA", "RangeOptions", "read", "read_table"]

#: Brokers filter by at most this many tags. With more, all messages are fetched and filtered here.
_MAX_TAGS = 1000


def read(
    topic: str,
    nameserver: str | Sequence[str] | Cluster | None = None,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    columns: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    queues: Collection[MessageQueue] | None = None,
    options: RangeOptions | None = None,
) -> Iterator[pa.RecordBatch]:
    """Read a topic as Arrow record batches, queue after queue, each in the order of its offsets.

    This call fixes the range: messages that are sent later are not read. It uses no consumer group and commits nothing.
    Memory is bounded by `options.buffer_bytes`, however long the topic is; bodies stay in the buffers that were
    received. Close the iterator to end early.

    Args:
        topic: its name.
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` to share.
        start: "earliest", "latest", a time such as a datetime with a time zone or "-24h", or offsets by queue. A queue
            without an offset is read from its first message.
        end: where to stop, exclusive, in the same forms. A queue without an offset is read to its last message.
        columns: some of `MESSAGE_SCHEMA`, in the wanted order; None for all. Fewer columns are read faster.
        tags: only messages with one of these.
        queues: only these.
        options: how to read.

    Raises:
        InvalidArgument: a column, a tag, a queue or a bound is wrong.
        TopicNotFound: no broker has the topic.
        Unavailable, DeadlineExceeded: a broker with queues to read is down, or it or all name servers did not answer
            for `options.max_wait_s` seconds.
        OffsetOutOfRange: `start` or `end` has an offset that its queue does not have; or, while reading, messages were
            deleted before they were read.
        TopicRecreated: while reading, the topic was deleted and created again.
        DamagedMessages: while reading, a batch is damaged.
        MinimqError: while reading, no data arrived for `options.max_wait_s` seconds.
    """
    if isinstance(tags, str):
        raise InvalidArgument(f"tags is {tags!r}: give a list, such as [{tags!r}]")
    wanted = None if tags is None else frozenset(tags)
    if wanted is not None and not wanted:
        raise InvalidArgument("tags is empty: name at least one, or leave it out to read all messages")
    made = ArrowColumns(chosen_columns(columns), wanted)
    chosen = options or RangeOptions()
    plan = planned(topic, nameserver, start, end, queues, chosen)
    return _batches(nameserver, chosen, plan, made, wanted or frozenset())


def read_table(
    topic: str,
    nameserver: str | Sequence[str] | Cluster | None = None,
    *,
    start: Bound = "earliest",
    end: Bound = "latest",
    columns: Iterable[str] | None = None,
    tags: Iterable[str] | None = None,
    queues: Collection[MessageQueue] | None = None,
    newest: bool = False,
    options: RangeOptions | None = None,
) -> pa.Table:
    """Read a topic as one Arrow table. Errors, and all arguments except `newest`, are those of `read`.

    With `newest` the table has only the newest message of each key, and no key whose newest message is a tombstone: the
    current state of a compacted topic. It needs memory for this table, not for the whole topic.
    """
    schema = chosen_columns(columns)
    if not newest:
        return pa.Table.from_batches(
            read(topic, nameserver, start=start, end=end, columns=columns, tags=tags, queues=queues, options=options),
            schema,
        )
    wanted = [*schema.names, *(name for name in ("keys", "body") if name not in schema.names)]
    batches = read(topic, nameserver, start=start, end=end, columns=wanted, tags=tags, queues=queues, options=options)
    return newest_of_each_key(batches, chosen_columns(wanted)).select(schema.names)


def _batches(
    nameserver: str | Sequence[str] | Cluster | None,
    options: RangeOptions,
    plan: Sequence[QueueRange],
    columns: ArrowColumns,
    tags: Collection[str],
) -> Iterator[pa.RecordBatch]:
    with closing(RangeReader(nameserver, options)) as reader:
        yield from columns.gathered(piece for part in plan for piece in _pieces(reader, part, columns, tags))


def _pieces(
    reader: RangeReader, part: QueueRange, columns: ArrowColumns, tags: Collection[str]
) -> Iterator[pa.RecordBatch]:
    asked = tags if len(tags) <= _MAX_TAGS else ()
    with closing(reader.read(part.queue, part.start, part.end, asked, part.term, part.topic_id)) as batches:
        yield from columns.pieces(batches, part.start, part.end)
