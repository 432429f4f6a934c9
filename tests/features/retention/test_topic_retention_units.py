"""Topics with rules of their own: what is shown of them, against a list of all that was sent."""

from __future__ import annotations

import random

from minimq_broker.features.retention.retention import RetentionRules
from minimq_broker.features.retention.topic_retention import TopicRetention
from support.chance import SEED
from support.stores import OpenStore, Stores
from support.topic_rules import set_rules

SEGMENT_BYTES = 64 << 10


def look(store: OpenStore) -> TopicRetention:
    retention = store.store.old.topics
    retention.look(store.state, store.clock())
    return retention


def first(store: OpenStore, topic: str, number: int = 0) -> int:
    return store.store.bounds(store.key(topic, number))[0]


def test_by_age(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    for topic in ("a", "b"):
        store.create_topic(topic, 2)
    for number in range(20):
        stores.clock.now_ms += 1000
        store.append("a", number % 2, b"%d" % number, bytes(8_000))
        store.append("b", number % 2, b"%d" % number)
    assert len(store.store.log.segments) > 3
    set_rules(store, "a", age_ms=5_000)
    assert first(store, "a") == 0
    look(store)
    assert [first(store, "a", queue) for queue in range(2)] == [16, 14]
    assert [first(store, "b", queue) for queue in range(2)] == [0, 0]
    assert store.bodies("a", 0, 0)[0] == b"16"
    assert store.store.offset_at(store.key("a", 0), 0) == 16
    assert store.store.stored_ms(store.key("a", 0), 0) == stores.clock.now_ms - 3_000
    cuts = store.store.log.cuts
    look(store)
    assert store.store.log.cuts == cuts
    stores.clock.now_ms += 5_000
    look(store)
    assert store.store.bounds(store.key("a", 0)) == (20, 20)
    assert store.bodies("a", 0) == []
    store.append("a", 0, b"more")
    look(store)
    assert store.bodies("a", 0) == [b"more"]
    set_rules(store, "a")
    look(store)
    assert first(store, "a") == 0


def test_by_the_age_that_the_broker_keeps(stores: Stores) -> None:
    """Topics without rules of their own are shown as long as that; those of groups are not hidden."""
    store = stores.open(segment_bytes=SEGMENT_BYTES, retention=RetentionRules(max_age_ms=5_000))
    for topic in ("a", "own", "%DLQ%g"):
        store.create_topic(topic, 2)
    set_rules(store, "own", age_ms=9_000)
    sent: dict[int, list[tuple[int, int]]] = {0: [], 1: []}
    chance = random.Random(SEED)
    for number in range(200):
        stores.clock.now_ms += chance.randrange(100, 2_000)
        queue = chance.randrange(2)
        if chance.random() < 0.8:
            sent[queue].append((store.append("a", queue, b"%d" % number, bytes(3_000)), stores.clock.now_ms))
        store.append("own", 0, b"%d" % number)
        store.append("%DLQ%g", 0, b"%d" % number)
        if chance.random() < 0.3:
            continue
        look(store)
        for each, found in sent.items():
            shown = [offset for offset, stored_ms in found if stored_ms + 5_000 > stores.clock.now_ms]
            end = found[-1][0] + 2 if found else 0  # two messages a batch
            assert first(store, "a", each) == (shown[0] if shown else end)
        assert first(store, "%DLQ%g") == 0
    assert len(store.store.log.segments) > 3
    assert 190 <= first(store, "own") < 200


def test_deleted_dead_letters_are_counted_from_the_first_one(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look(store)
    store.create_topic("%DLQ%g", 1)
    set_rules(store, "%DLQ%g", size=50_000)
    for _ in range(30):
        store.append("%DLQ%g", 0, bytes(3_000))
    deleted = look(store).dead_letters_deleted
    assert deleted == first(store, "%DLQ%g") > 10
    assert look(store).dead_letters_deleted == deleted
    store.close()
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    assert look(store).dead_letters_deleted == 0  # they were deleted before the start
    store.append("%DLQ%g", 0, bytes(3_000))
    assert look(store).dead_letters_deleted == first(store, "%DLQ%g") - deleted > 0


def test_by_size(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
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
        look(store)
        kept = [item for item in sent if item[1] >= first(store, "a", item[0])]
        total = sum(size for _, _, size in kept)
        assert kept == sent[len(sent) - len(kept) :]  # the oldest go first, over all queues
        assert total <= 50_000 + SEGMENT_BYTES // 64 + max(size for _, _, size in sent)
        assert total > 50_000 - 3_200 or len(kept) == len(sent)
    assert len(kept) < len(sent)
    store.close()
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    look(store)
    assert kept[0][1] == first(store, "a", kept[0][0])
