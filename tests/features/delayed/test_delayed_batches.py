"""Delayed batches in a store: stored, published once when they are due, recalled, listed, replicated and recovered."""

from __future__ import annotations

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.features.delayed.delaying import next_due_ms
from minimq_broker.features.delayed.due_index import DelayedPage, DelayedRange, DueIndex
from minimq_broker.features.delayed.table import MAX_DELAY_MS, Delay, RecallOutcome
from minimq_broker.log.disk_levels import Watermarks
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.queue_ends import HeldKey
from minimq_common.errors import InvalidArgument, QueueNotFound, StoreFull, TopicNotFound
from support.kernel_stores import TIMEOUT_S, make_batch, numbered_batch
from support.stores import OpenStore, Stores

DAY_MS = 86_400_000
RECALLED, AGAIN, TOO_LATE, NOT_RECALLABLE = RecallOutcome


@pytest.fixture
def store(stores: Stores) -> OpenStore:
    opened = stores.open()
    opened.create_topic("orders", queues=2)
    return opened


def delayed(store: OpenStore, topic_id: int, wanted: DelayedRange) -> DelayedPage:
    return DueIndex(store.store.log).page(topic_id, wanted, store.state.tables["delayed"].published)


def after(store: OpenStore, delay_ms: int) -> int:
    return store.clock.now_ms + delay_ms


def wait(store: OpenStore, ms: int) -> list[bytes]:
    """Let time pass, publish what is due, and return all of the first queue."""
    store.clock.now_ms += ms
    store.publish_due()
    return store.bodies("orders", 0)


def test_a_delay_has_a_limit(store: OpenStore) -> None:
    store.delay("orders", 0, after(store, MAX_DELAY_MS), b"a")
    with pytest.raises(InvalidArgument, match=r"by 366 days at most, not by 367\.0"):
        store.delay("orders", 0, after(store, MAX_DELAY_MS + DAY_MS), b"a")


def test_delays_do_not_go_with_transactions_and_fifo_topics(store: OpenStore) -> None:
    store.record(lambda state: TopicSet(Topic("fifo", state.position, 1, 1, fifo=True)))
    with pytest.raises(InvalidArgument, match="FIFO topic, whose messages keep their order: they cannot be delayed"):
        store.delay("fifo", 0, after(store, 10), b"a")
    with pytest.raises(QueueNotFound, match="no queue 7"):
        store.delay("orders", 7, after(store, 10), b"a")
    with pytest.raises(TopicNotFound):
        store.delay("missing", 7, after(store, 10), b"a")


def test_a_batch_for_a_queue_that_is_hidden_goes_to_another_one(store: OpenStore) -> None:
    store.delay("orders", 1, after(store, 100), b"a")
    topic = store.state.topic("orders")
    store.record(TopicSet(Topic("orders", topic.topic_id, 2, 1)))
    assert wait(store, 100) == [b"a"]


@pytest.mark.replaced_by("machine")
@pytest.mark.parametrize("starts", [0, 1])
def test_delays_end_in_time_after_a_clock_was_far_ahead(store: OpenStore, stores: Stores, starts: int) -> None:
    right_ms = store.clock.now_ms
    published = [store.delay("orders", 0, after(store, days * DAY_MS), b"%d" % days) for days in (1, 30)]
    store.delay("orders", 0, after(store, 90 * DAY_MS), b"90")
    assert wait(store, 31 * DAY_MS) == [b"1", b"30"]  # early, but not by this clock
    store.clock.now_ms = right_ms
    keys = {days: store.delay("orders", 0, after(store, days * DAY_MS), b"%d new" % days) for days in (2, 29, 31)}
    first = store.delay("orders", 0, after(store, 1_500), b"first")
    assert (first.until_ms, keys[2].until_ms) == (right_ms + 1_500, right_ms + 2 * DAY_MS)
    for _ in range(starts):
        store.close()
        store = stores.open()
    topic_id = store.state.topic("orders").topic_id
    assert [each.key for each in delayed(store, topic_id, DelayedRange()).batches][:3] == [first, keys[2], keys[29]]
    assert store.recall("orders", *published, keys[29]) == [TOO_LATE, TOO_LATE, RECALLED]
    assert wait(store, 1_499) == [b"1", b"30"]
    assert wait(store, 1) == [b"1", b"30", b"first"]
    assert wait(store, 3 * DAY_MS) == [b"1", b"30", b"first", b"2 new"]
    store.clock.now_ms = right_ms  # and back again
    store.delay("orders", 0, after(store, DAY_MS), b"1 again")
    assert wait(store, 40 * DAY_MS)[4:] == [b"1 again", b"31 new"]
    assert store.state.tables["delayed"].published.former == ()
    assert wait(store, 60 * DAY_MS)[6:] == [b"90"]
    assert next_due_ms(store.store) is None
    store.close()
    assert check_directory(store.path).findings == []


def test_batches_are_listed_page_by_page(store: OpenStore) -> None:
    store.create_topic("others")
    keys = []
    for number in range(10):
        keys.append(store.delay("orders", 0, after(store, 100 + number), b"%d" % number))
        store.delay("others", 0, after(store, 100 + number), b"x")
    store.recall("orders", keys[3])
    del keys[3]
    topic_id = store.state.topic("orders").topic_id
    found, last = [], HeldKey(0, 0)
    while True:
        page = delayed(store, topic_id, DelayedRange(after=last, max_batches=4))
        found += [batch.key for batch in page.batches]
        if page.next is None:
            break
        last = page.next
    assert found == keys
    some = delayed(store, topic_id, DelayedRange(from_ms=keys[2].until_ms, before_ms=keys[5].until_ms)).batches
    assert [batch.key for batch in some] == keys[2:5]
    assert (some[0].data, some[0].count, some[0].is_recallable) == (make_batch([b"2"]), 1, True)


def test_a_disk_that_fills_with_delays_rejects_more_and_loses_none(stores: Stores) -> None:
    full = Watermarks(delete_early=1e-9, reject=1)
    store = stores.open(segment_bytes=1 << 17, watermarks=full)
    store.create_topic("orders")
    data = numbered_batch(7, 1, b"first")
    key = store.delay("orders", 0, after(store, 100), data=data)
    for _ in range(20):
        store.append("orders", 0, bytes(20_000))
    end = store.state.end(store.key("orders", 0)).offset
    with pytest.raises(StoreFull, match="delayed messages keep its oldest data: no more are accepted"):
        store.delay("orders", 0, after(store, 200), b"second")
    again = store.submit("orders", 0, data, hold=Delay(delay_ms=100)).result(TIMEOUT_S)
    assert again.held == key  # that one is stored
    store.append("orders", 0, b"not delayed")
    store.clock.now_ms += 100
    store.publish_due()
    assert store.bodies("orders", 0, end) == [b"not delayed", b"first"]
    store.close()
    store = stores.open(segment_bytes=1 << 17, watermarks=full)  # all is saved
    store.delay("orders", 0, after(store, 200), b"second")
