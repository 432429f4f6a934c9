"""Topics with rules of their own: what is shown of them, against a list of all that was sent."""

from __future__ import annotations

import random

from minimq_broker.features.retention.retention import RetentionOptions
from minimq_broker.features.retention.topic_retention import TopicRetention
from support.chance import SEED
from support.stores import OpenStore, Stores
from support.topic_rules import set_rules

SEGMENT_BYTES = 64 << 10


class Looks:
    """Looks at the topics of a store."""

    def __init__(self, store: OpenStore) -> None:
        self.store = store
        self.retention = TopicRetention(store.store.log, SEGMENT_BYTES, RetentionOptions())

    def __call__(self) -> TopicRetention:
        self.retention.look(self.store.state, self.store.clock())
        return self.retention


def first(store: OpenStore, topic: str, number: int = 0) -> int:
    return store.store.bounds(store.key(topic, number))[0]


def test_deleted_dead_letters_are_counted_from_the_first_one(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look = Looks(store)
    look()
    store.create_topic("%DLQ%g", 1)
    set_rules(store, "%DLQ%g", size=50_000)
    for _ in range(30):
        store.append("%DLQ%g", 0, bytes(3_000))
    deleted = look().dead_letters_deleted
    assert deleted == first(store, "%DLQ%g") > 10
    assert look().dead_letters_deleted == deleted
    store.close()
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look = Looks(store)
    assert look().dead_letters_deleted == 0  # they were deleted before the start
    store.append("%DLQ%g", 0, bytes(3_000))
    assert look().dead_letters_deleted == first(store, "%DLQ%g") - deleted > 0


def test_by_size(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look = Looks(store)
    for topic in ("a", "b"):
        store.create_topic(topic, 2)
    chance = random.Random(SEED)
    sent, kept = list[tuple[int, int, int]](), list[tuple[int, int, int]]()
    set_rules(store, "a", size=50_000)
    for _ in range(60):
        queue, size = chance.randrange(2), chance.randrange(3_000)
        offset = store.append("a", queue, chance.randbytes(size))
        sent.append((queue, offset, store.store.next_size(store.key("a", queue), offset)))
        store.append("b", queue, bytes(3_000))
        look()
        kept = [item for item in sent if item[1] >= first(store, "a", item[0])]
        total = sum(size for _, _, size in kept)
        assert kept == sent[len(sent) - len(kept) :]  # the oldest go first, over all queues
        assert total <= 50_000 + SEGMENT_BYTES // 64 + max(size for _, _, size in sent)
        assert total > 50_000 - 3_200 or len(kept) == len(sent)
    assert len(kept) < len(sent)
    store.close()
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look = Looks(store)
    look()
    assert kept[0][1] == first(store, "a", kept[0][0])


def test_hidden_offsets_are_shown_again_when_others_take_them(stores: Stores) -> None:
    store = stores.open(alone=False)
    look = Looks(store)
    store.store.writer.lead(1)
    store.create_topic("t")
    set_rules(store, "t", age_ms=1_000)
    end = store.store.end
    store.append("t", 0, b"expired")
    store.clock.now_ms += 1_000
    look()
    assert first(store, "t") == 1
    store.store.writer.follow()
    store.store.writer.truncate(end)
    store.store.writer.lead(2)
    store.append("t", 0, b"new")
    assert first(store, "t") == 0
