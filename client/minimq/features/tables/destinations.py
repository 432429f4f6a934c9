"""Divides an Arrow batch by topic and queue. Rows for one queue keep their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from minimq.features.tables.row_columns import checked_text, rejected, renamed
from minimq.sending.selectors import java_hash
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.names import check_broker

#: Returns the sorted queues of a topic, over which rows are spread.
Queues = Callable[[str], Sequence[MessageQueue]]
#: Returns the function from key to queue of a compacted topic; None for other topics.
KeyQueue = Callable[[str], Callable[[str], MessageQueue] | None]

#: Longer keys are hashed one by one.
_MAX: Final = 64
_THIRTY_ONE: Final = pa.scalar(31, pa.int32())
#: With a type: for an untyped number, Arrow imports dateutil, each time anew if it is missing, and may swallow Ctrl-C.
_NOTHING: Final = pa.scalar(0, pa.int32())

#: Columns that become part of a message.
_CONTENT: Final = ("body", "tag", "keys", "properties")
#: The highest possible queue id.
_MAX_QUEUES: Final = (1 << 31) - 1


class Destination(NamedTuple):
    """A topic, and the queue if it is fixed."""

    topic: str
    queue: MessageQueue | None
    #: Whether the queue was chosen among all, so that another one takes its place if it is removed.
    may_move: bool = False


class Destinations:
    def __init__(self, topic: str | None, queues: Queues, key_queue: KeyQueue = lambda _: None) -> None:
        self._key_queue = key_queue
        self._topic = topic
        self._queues = queues

    def split(self, batch: pa.RecordBatch) -> Iterator[tuple[Destination, pa.RecordBatch]]:
        """Yield the rows of a non-empty batch by destination, without the columns that determine it."""
        given = {name.lower(): column for name, column in zip(batch.schema.names, batch.columns, strict=True)}
        named = renamed(given)
        content = pa.RecordBatch.from_pydict({name: named[name] for name in _CONTENT if name in named})
        where: dict[str, pa.Array] = {
            name: named[name] for name in ("queue_id", "broker_name", "sharding_key") if name in named
        }
        if self._topic is not None:
            yield from self._by_queue(self._topic, content, where)
            return
        if named["topic"].null_count:
            raise InvalidArgument("column 'topic' is null in a row: fill it, or give one topic for all rows")
        topics = checked_text("topic", named["topic"]).dictionary_encode()
        names = topics.dictionary.to_pylist()
        for code, rows in _grouped(topics.indices):
            yield from self._by_queue(
                names[code], _taken(content, rows), {name: _taken(column, rows) for name, column in where.items()}
            )

    def _by_queue(
        self, topic: str, content: pa.RecordBatch, where: dict[str, pa.Array]
    ) -> Iterator[tuple[Destination, pa.RecordBatch]]:
        queues = list(self._queues(topic))
        queue_of = self._key_queue(topic)
        if queue_of is not None:
            yield from _by_key(topic, content, where, queue_of)
            return
        if all(column.null_count == len(column) for column in where.values()):
            yield Destination(topic, None), content
            return
        if not queues:
            raise InvalidArgument(
                f"topic {topic} has no queue that takes messages: see `minimq topic describe {topic}`"
            )
        chosen = [pa.nulls(content.num_rows, pa.int32())]
        if "sharding_key" in where:
            chosen.insert(0, _modulo(key_hashes(checked_text("sharding_key", where["sharding_key"])), len(queues)))
        if "queue_id" in where:
            chosen.insert(0, _numbered(where["queue_id"], len(queues)))
            if "broker_name" in where:
                chosen.insert(0, _named(where["broker_name"], where["queue_id"], topic, queues))
        for code, rows in _grouped(pc.coalesce(*chosen, pa.scalar(-1, pa.int32()))):
            queue = queues[code] if code >= 0 else None
            yield Destination(topic, queue, queue is not None and "broker_name" not in where), _taken(content, rows)


def _by_key(
    topic: str, content: pa.RecordBatch, where: dict[str, pa.Array], queue_of: Callable[[str], MessageQueue]
) -> Iterator[tuple[Destination, pa.RecordBatch]]:
    if "queue_id" in where and where["queue_id"].null_count < len(where["queue_id"]):
        raise rejected(
            "queue_id", f"is set in a row, and each key of the compacted topic {topic} has its queue: drop it"
        )
    keys = content.column("keys") if "keys" in content.schema.names else pa.nulls(content.num_rows, pa.string())
    if pa.types.is_list(keys.type):
        keys = keys.filter(pc.greater(pc.list_value_length(keys), _NOTHING))
        keys = pc.list_element(keys, _NOTHING)
    if keys.null_count or len(keys) < content.num_rows or pc.any(pc.equal(pc.binary_length(keys), _NOTHING)).as_py():
        raise rejected("keys", f"has no key in a row, and topic {topic} is compacted by key: filter it out")
    place = content.schema.get_field_index("body")
    body = content.column(place)
    if pc.any(pc.equal(pc.binary_length(body), _NOTHING)).as_py():
        raise rejected("body", f"is empty in a row for the compacted topic {topic}: null deletes the key")
    if body.null_count:
        empty = b"" if pa.types.is_binary(body.type) or pa.types.is_large_binary(body.type) else ""
        content = content.set_column(place, "body", body.fill_null(empty))
    encoded = checked_text("keys", keys).dictionary_encode()
    numbers: dict[MessageQueue, int] = {}
    codes = [numbers.setdefault(queue_of(key), len(numbers)) for key in encoded.dictionary.to_pylist()]
    queues = list(numbers)
    for code, rows in _grouped(pa.array(codes, pa.int32()).take(encoded.indices)):
        yield Destination(topic, queues[code]), _taken(content, rows)


def _numbered(ids: pa.Array, count: int) -> pa.Array:
    ids = ids.cast(pa.int64())
    if ids.null_count < len(ids):
        lowest, highest = pc.min_max(ids).as_py().values()
        if not 0 <= lowest <= highest <= _MAX_QUEUES:
            wrong = lowest if lowest < 0 else highest
            raise InvalidArgument(f"column 'queue_id' is {wrong} in a row: it must be from 0 to {_MAX_QUEUES}")
    return _modulo(ids, count)


def _named(brokers: pa.Array, ids: pa.Array, topic: str, queues: list[MessageQueue]) -> pa.Array:
    places = {(queue.broker_name, queue.queue_id): place for place, queue in enumerate(queues)}
    encoded = checked_text("broker_name", brokers).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    for name in names:
        try:
            check_broker(name)
        except InvalidArgument as error:
            raise rejected("broker_name", f"names no broker in a row: {error.message}") from None
    high = pc.multiply(encoded.indices.cast(pa.int64()), pa.scalar(1 << 32, pa.int64()))
    both = pc.add(high, ids.cast(pa.int64())).dictionary_encode()
    found = []
    for pair in both.dictionary.to_pylist():
        key = names[pair >> 32], pair & 0xFFFF_FFFF
        if key not in places:
            # The queue may be unavailable or brand-new: the sender waits for it, and reports a timeout.
            places[key] = len(queues)
            queues.append(MessageQueue(topic, *key))
        found.append(places[key])
    return pa.array(found, pa.int32()).take(both.indices)


def _modulo(numbers: pa.Array, count: int) -> pa.Array:
    divisor = pa.scalar(count, pa.int64())
    whole = pc.multiply(pc.divide(numbers, divisor), divisor)
    return pc.subtract(numbers, whole).cast(pa.int32())


def _grouped(codes: pa.Array) -> Iterator[tuple[int, pa.Array | None]]:
    bounds = pc.min_max(codes).as_py()
    if bounds["min"] == bounds["max"]:
        yield bounds["min"], None
        return
    order = pc.array_sort_indices(codes)  # a stable sort
    runs = pc.run_end_encode(codes.take(order))
    start = 0
    for code, end in zip(runs.values.to_pylist(), runs.run_ends.to_pylist(), strict=True):
        yield code, order[start:end]
        start = end


def _taken(rows: pa.RecordBatch | pa.Array, places: pa.Array | None) -> pa.RecordBatch | pa.Array:
    return rows if places is None else rows.take(places)


# ---- the hash of `selectors.py`, for a whole column ---------------------------------------------------


def key_hashes(keys: pa.Array) -> pa.Array:
    """Return the absolute value of each key's `java_hash` as a 64-bit number; null stays null."""
    if pa.types.is_integer(keys.type) or pa.types.is_large_string(keys.type):
        keys = keys.cast(pa.string())
    elif pa.types.is_large_binary(keys.type):
        keys = keys.cast(pa.binary())
    encoded = keys.dictionary_encode()
    distinct = encoded.dictionary
    return pc.abs(_hashes(distinct).cast(pa.int64())).take(encoded.indices)


def _hashes(keys: pa.Array) -> pa.Array:
    if len(keys) == 0:
        return pa.array([], pa.int32())
    is_text = pa.types.is_string(keys.type)
    lengths = pc.binary_length(keys).cast(pa.int32())
    longest = pc.max(lengths).as_py()
    if longest > _MAX or (is_text and not pc.all(pc.string_is_ascii(keys)).as_py()):
        return pa.array(
            [java_hash(key if isinstance(key, str) else key.decode("latin-1")) for key in keys.to_pylist()], pa.int32()
        )
    # Position by position, over all keys at once. Arrow's integers overflow like Java's.
    starts = pa.Array.from_buffers(pa.int32(), len(keys), [None, keys.buffers()[1]], offset=keys.offset)
    content = keys.buffers()[2]
    hashes = pa.repeat(_NOTHING, len(keys))
    if longest == 0:
        return hashes
    units = pa.Array.from_buffers(pa.uint8(), content.size, [None, content])
    for place in range(longest):
        # Shorter keys read an arbitrary unit, and keep their hash.
        at = pa.scalar(place, pa.int32())
        within = pc.greater(lengths, at)
        taken = units.take(pc.if_else(within, pc.add(starts, at), _NOTHING)).cast(pa.int32())
        hashes = pc.if_else(within, pc.add(pc.multiply(hashes, _THIRTY_ONE), taken), hashes)
    return hashes
