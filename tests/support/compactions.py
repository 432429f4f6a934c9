"""Compacted topics of a store for tests: what was sent, what is left, and rounds of compaction."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator
from typing import NamedTuple

from minimq_broker.features.compaction.compaction_file import load_record, save_record
from minimq_broker.features.compaction.compaction_round import CompactionRound
from minimq_broker.features.compaction.topic_compaction import TopicCompaction, compacted, compaction_of
from minimq_broker.log.rows import ReadLimits
from minimq_broker.state.facts import TopicSet
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_broker.state.state import State
from minimq_common.batch.builder import BatchBuilder, encode
from minimq_common.batch.compression import Compression
from minimq_common.batch.records import RecordBatch
from minimq_common.model import Message
from support.batches import NOW_MS
from support.kernel_stores import batches_of
from support.stores import OpenStore

ALL = ReadLimits(1 << 40, 1 << 40)
TOMBSTONE_MS = 3_600_000


class Sent(NamedTuple):
    """A message as it was sent, or as it is found."""

    offset: int
    key: str | None
    body: bytes
    message_id: str


def make_compacted(store: OpenStore, name: str, queues: int, *, min_lag_ms: int = 0) -> None:
    """Create a compacted topic."""
    store.create_topic(name, queues)
    rules = TopicCompaction(min_lag_ms, TOMBSTONE_MS, 50)

    def compact(state: State) -> TopicSet:
        return TopicSet(compacted(state.topic(name), queues, rules))

    store.record(compact)


class Workload:
    """Random messages for the queues of a compacted topic, with others between them, and what they add up to."""

    def __init__(self, store: OpenStore, topic: str, queues: int, seed: int) -> None:
        self.store, self.topic, self.queues = store, topic, queues
        self.chance = random.Random(seed)
        #: By queue: all that was sent, and the table that it adds up to.
        self.sent: dict[int, list[Sent]] = {queue: [] for queue in range(queues)}
        self.tables: dict[int, dict[str, bytes]] = {queue: {} for queue in range(queues)}
        self._numbers = iter(range(1, 1 << 30))

    def send(self, batches: int, *, keys: int = 40, others: float = 0.2) -> None:
        """Send some batches."""
        chance = self.chance
        for _ in range(batches):
            if chance.random() < others:
                self.store.append("other", 0, bytes(chance.randrange(1, 2000)))
                continue
            queue, number = chance.randrange(self.queues), next(self._numbers)
            messages = [self._message(queue, keys) for _ in range(chance.choice((1, 1, 3, 40)))]
            compression = chance.choice((None, Compression(above_bytes=1, level=chance.choice((1, 19)))))
            data = (
                encode(messages, NOW_MS, 7, number, 1 << 20, compression)
                if all(message.body for message in messages)
                else _with_tombstones(messages, number, compression)
            )
            base = self.store.submit(self.topic, queue, data).result(20).place.base_offset
            ids = RecordBatch(data)
            for index, message in enumerate(messages):
                key = message.keys[0] if message.keys else None
                self.sent[queue].append(Sent(base + index, key, message.body, ids.message_id(index)))
                if key is not None:
                    self.tables[queue][key] = message.body
                    if not message.body:
                        del self.tables[queue][key]

    def _message(self, queue: int, keys: int) -> Message:
        chance = self.chance
        number = chance.randrange(keys)
        key = f"{queue}-{number}" if number % 3 else f"a key that is longer than its hash: {number}"
        if chance.random() < 0.1:
            return Message.tombstone("", key)
        body = chance.randbytes(chance.choice((1, 10, 400)))
        return Message("", body, None, () if chance.random() < 0.02 else (key, "more"))

    def found(self, queue: int) -> list[Sent]:
        """Return what is there."""
        found = []
        key = self.store.key(self.topic, queue)
        end, offset = self.store.store.queue_end(key).offset, 0
        while offset < end:
            for batch in batches_of(self.store.store, key, offset, 1 << 40, 1 << 20):
                records = RecordBatch(batch.data)
                bodies = records.bodies()
                for place, number in enumerate(records.numbers()):
                    keys = records.keys(number)
                    message_id = records.message_id(number)
                    found.append(Sent(batch.base_offset + number, keys[0] if keys else None, bodies[place], message_id))
                offset = batch.base_offset + len(records)
        return found

    def check(self) -> None:
        """Assert that nothing is left but what was sent, in order, and that it adds up to the same table."""
        for queue in range(self.queues):
            found, sent = self.found(queue), self.sent[queue]
            by_offset = {each.offset: each for each in sent}
            assert [each.offset for each in found] == sorted({each.offset for each in found})
            assert found == [by_offset[each.offset] for each in found]
            table: dict[str, bytes] = {}
            for each in found:
                if each.key is not None:
                    table[each.key] = each.body
            assert {key: body for key, body in table.items() if body} == self.tables[queue]
            keyless = [each for each in sent if each.key is None]
            assert [each for each in found if each.key is None] == keyless

    def left(self) -> int:
        """Return how many messages are left."""
        return sum(len(self.found(queue)) for queue in range(self.queues))


def _with_tombstones(messages: list[Message], number: int, compression: Compression | None) -> bytes:
    builder = BatchBuilder(1 << 20, compression)
    builder.add(messages)
    return builder.build(NOW_MS, 7, number)


def begin_round(
    store: OpenStore, *, most_keys: int = 1 << 20, lowest_needed: Callable[[], int] = lambda: NOTHING_NEEDED
) -> CompactionRound:
    """Begin a round over all that is sealed and saved."""
    message_store = store.store
    found = {topic.topic_id: compaction_of(topic) for topic in message_store.state.topics.values()}
    topics = {topic_id: rules for topic_id, rules in found.items() if rules is not None}
    return CompactionRound(
        message_store.log,
        topics,
        load_record(message_store.log.path),
        limit=min(message_store.saved_position, message_store.confirmed),
        lowest_needed=lowest_needed,
        now_ms=store.clock(),
        most_keys=most_keys,
        segment_bytes=store.options.segment_bytes,
        pins=message_store.pins,
    )


def compact(store: OpenStore, *, most_keys: int = 1 << 20) -> CompactionRound:
    """Carry a round out."""
    done = begin_round(store, most_keys=most_keys)
    is_done: list[bool] = []

    def run() -> Generator[None, None, None]:
        is_done.append((yield from done.run()))

    for _ in run():
        pass
    assert is_done == [True]
    save_record(store.store.log.path, done.done())
    return done
