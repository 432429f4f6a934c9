"""Plans the queue ranges that a table is read from, and selects the newest message of each key."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import closing
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from minimq.connection.cluster import Cluster
from minimq.connection.master_calls import with_retries
from minimq.connection.offline_brokers import describe_offline
from minimq.consuming.queue_finder import QueueFinder, QueueLookup
from minimq.consuming.range_reader import RangeOptions
from minimq.consuming.stored_offsets import StoredOffsets
from minimq_common.errors import InvalidArgument, OffsetOutOfRange, QueueNotFound, TopicNotFound, Unavailable
from minimq_common.model import MessageQueue, TopicId
from minimq_common.names import check_topic
from minimq_common.timestamps import Time, start_ms, timestamp_ms

#: "earliest", "latest", a time, or offsets by queue.
Bound = Time | Mapping[MessageQueue, int]

_MAX_OFFSET: Final = (1 << 63) - 1


class QueueRange(NamedTuple):
    """Offsets of one queue from `start` up to but not including `end`, valid in one term and one topic."""

    queue: MessageQueue
    start: int
    end: int
    term: int
    topic_id: TopicId


def planned(
    topic: str,
    nameserver: str | Sequence[str] | Cluster | None,
    start: Bound,
    end: Bound,
    queues: Collection[MessageQueue] | None,
    options: RangeOptions,
) -> list[QueueRange]:
    """Look up the ranges to read, sorted by queue, without empty ones. Asks brokers, and blocks."""
    check_topic(topic)
    if queues is not None and not queues:
        raise InvalidArgument("queues is empty: name at least one, or leave it out to read all")
    now = time.time()
    _check_times(start, end, now)
    finder = QueueFinder(nameserver, timeout_s=options.answer_timeout_s, credentials=options.credentials)
    with closing(finder):
        found = with_retries(lambda _: _found(finder, topic, queues), options.max_wait_s, option="max_wait_s")
        if queues is not None:
            found = _chosen(found, topic, queues)
        first = _offsets(finder, found, start, "start", now)
        last = _offsets(finder, found, end, "end", now)
    if isinstance(start, Mapping) and isinstance(end, Mapping):
        for queue in start:
            if first[queue] > last[queue]:
                raise InvalidArgument(
                    f"start is {first[queue]} and end {last[queue]} for {queue}: end lies before start"
                )
    return [
        QueueRange(queue, first[queue], last[queue], about.term, about.topic_id)
        for queue, about in sorted(found.items())
        if first[queue] < last[queue]
    ]


def _found(
    finder: QueueFinder, topic: str, queues: Collection[MessageQueue] | None
) -> dict[MessageQueue, StoredOffsets]:
    findings: QueueLookup = finder.find([topic])
    wanted = None if queues is None else {queue.broker_name for queue in queues}
    for (_, broker), error in findings.failures.items():
        if wanted is None or broker in wanted:
            raise error.with_message(f"topic {topic} cannot be read as a whole: {broker}: {error.message}")
    offline = [broker for broker in findings.offline.values() if wanted is None or broker.broker_name in wanted]
    if offline:
        raise Unavailable(f"topic {topic} cannot be read as a whole: {describe_offline(offline, 'not read')[0]}")
    found = {queue: about for queue, about in findings.queues.items() if about.is_shown}
    if not found:
        raise TopicNotFound(f"topic {topic} does not exist: see `minimq topic list`")
    return found


def _chosen(
    found: Mapping[MessageQueue, StoredOffsets], topic: str, queues: Collection[MessageQueue]
) -> dict[MessageQueue, StoredOffsets]:
    for queue in queues:
        if queue not in found:
            raise QueueNotFound(f"topic {topic} has no queue {queue}: see `minimq topic describe {topic}`")
    return {queue: found[queue] for queue in queues}


def _offsets(
    finder: QueueFinder, found: Mapping[MessageQueue, StoredOffsets], bound: Bound, name: str, now: float
) -> Mapping[MessageQueue, int]:
    if bound == "earliest":
        return {queue: about.first for queue, about in found.items()}
    if bound == "latest":
        return {queue: about.end for queue, about in found.items()}
    if isinstance(bound, Mapping):
        _check_offsets(found, bound, name)
        whole = {queue: about.first if name == "start" else about.end for queue, about in found.items()}
        return whole | dict(bound)
    return finder.offsets_at(found, _time_ms(bound, now, name))


def _check_times(start: Bound, end: Bound, now: float) -> None:
    """Raise `InvalidArgument` for a bound that is not a time, a start in the future, and an end before the start."""
    times = [
        None if bound in ("earliest", "latest") or isinstance(bound, Mapping) else _time_ms(bound, now, name)
        for bound, name in ((start, "start"), (end, "end"))
    ]
    if times[0] is not None and times[1] is not None and times[0] > times[1]:
        raise InvalidArgument("end is before start: nothing is stored in between")


def _time_ms(bound: Time, now: float, name: str) -> int:
    if isinstance(bound, int):
        raise InvalidArgument(
            f"{name} is {bound!r}: give 'earliest', 'latest', a time such as '-24h', or offsets as {{queue: offset}}"
        )
    convert = start_ms if name == "start" else timestamp_ms
    return convert(bound, now, name, "'earliest', 'latest', offsets by queue, ")


def _check_offsets(found: Mapping[MessageQueue, StoredOffsets], given: Mapping[MessageQueue, int], name: str) -> None:
    for queue, offset in given.items():
        if queue not in found:
            raise InvalidArgument(f"{name} has an offset for {queue!r}, which is not a queue that is read")
        if type(offset) is not int or not 0 <= offset <= _MAX_OFFSET:
            raise InvalidArgument(f"{name} has the offset {offset!r} for {queue}: it must be a number from 0 on")
        about = found[queue]
        if not about.first <= offset <= about.end:
            raise OffsetOutOfRange(
                f"{name} has the offset {offset} for {queue}, which has {about.first} to {about.end}: correct it, or "
                "leave the queue out to read all of it"
            )


#: Deduplicate after this many new rows, or as many as the table has if that is more: memory holds at most
#: that many besides the table.
_MIN_ROWS: Final = 1 << 20
#: Tables up to this size are combined to one chunk, whose offsets have 32 bits.
_MAX_COMBINED_BYTES: Final = 1 << 30
#: Typed, because for an untyped number Arrow tries to import dateutil, each time if it is missing, and loses a Ctrl-C.
_NOTHING: Final = pa.scalar(0, pa.int32())


def newest_of_each_key(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.Table:
    """Return the last row of each key, in order, without tombstones. Rows of one key must come in the order sent."""
    table, waiting, rows = pa.Table.from_batches([], schema), list[pa.RecordBatch](), 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        if rows >= max(_MIN_ROWS, table.num_rows):
            table = _newest(pa.concat_tables([table, pa.Table.from_batches(waiting)]))
            waiting, rows = [], 0
    table = _newest(pa.concat_tables([table, pa.Table.from_batches(waiting, schema)]))
    return table.filter(pc.greater(pc.binary_length(table["body"]), _NOTHING))


def _newest(table: pa.Table) -> pa.Table:
    if table.num_rows == 0:
        return table
    keyed = pc.greater(pc.list_value_length(table["keys"]), _NOTHING)
    if not pc.all(keyed).as_py():  # messages without a key, sent before the topic was compacted
        table = table.filter(keyed)
    keys, rows = pc.list_element(table["keys"], _NOTHING), pa.array(range(table.num_rows), pa.int64())
    numbered = pa.table({"key": keys, "row": rows})
    last = numbered.group_by("key").aggregate([("row", "max")])["row_max"]
    # Not `take`: it concatenates all chunks first, and a chunk holds at most 2 GiB of bodies.
    kept = table.filter(pc.is_in(rows, last))
    return kept.combine_chunks() if kept.nbytes <= _MAX_COMBINED_BYTES else kept
