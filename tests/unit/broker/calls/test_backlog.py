"""The messages that topics hold and groups have still to read, over real stores."""

from __future__ import annotations

from minimq_broker.metrics.backlog import OTHERS, Backlog, TopicDepth
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.state.state import QueueKey
from support.kernel_stores import OpenStore, Stores


def commit(store: OpenStore, group: str, topic: str, *offsets: int) -> None:
    """Commit an offset for each queue, beginning with the first."""
    topic_id = store.key(topic, 0).topic_id
    committed = tuple(CommittedOffset(topic_id, queue_id, offset) for queue_id, offset in enumerate(offsets))
    store.record(OffsetsCommitted(group, committed))


def backlog(store: OpenStore, most_series: int = 100) -> Backlog:
    return Backlog(store.store, most_series)


def test_messages_of_all_queues_count_and_lag_is_what_was_not_committed(store: OpenStore) -> None:
    store.create_topic("empty", 3)
    store.create_topic("more", 2)
    store.append("more", 0, b"a")
    store.append("more", 1, b"b", b"c")
    store.append("t", 0, b"a", b"b", b"c")
    store.append("t", 1, b"d", b"e")
    commit(store, "both", "t", 1, 2)
    commit(store, "first", "t", 0)
    commit(store, "first", "more", 1)
    commit(store, "ahead", "t", 7)  # as after a reset to an offset that is still to come
    seen = backlog(store)
    assert seen.topics() == {"t": TopicDepth(5, 5), "empty": TopicDepth(0, 0), "more": TopicDepth(3, 3)}
    # A queue without a commit counts whole.
    lags = {("both", "t"): 2, ("first", "t"): 5, ("first", "more"): 2, ("ahead", "t"): 2}
    assert seen.lags() == lags


def test_what_is_deleted_is_neither_stored_nor_to_be_read(stores: Stores) -> None:
    store = stores.open(segment_bytes=1 << 16)
    store.create_topic("t", 2)
    store.append("t", 1, b"old")
    commit(store, "readers", "t", 0, 0)
    looks = 0
    bounds = store.store.bounds

    def counting(queue: QueueKey) -> tuple[int, int]:
        nonlocal looks
        looks += 1
        return bounds(queue)

    store.store.bounds = counting  # type: ignore[method-assign]
    seen = backlog(store)
    while len(store.store.log.segments) < 3:
        store.append("t", 0, bytes(30_000))
        assert seen.topics()["t"].stored == seen.topics()["t"].appended
    assert looks == 0  # as long as nothing was deleted there is nothing to look for
    end = store.state.end(store.key("t", 0)).offset
    assert store.store.log.remove_first(store.state.position)
    first = bounds(store.key("t", 0))[0]
    assert 0 < first < end
    for _ in range(2):
        assert seen.topics() == {"t": TopicDepth(end - first, end + 1)}
        assert seen.lags() == {("readers", "t"): end - first}
    assert looks == 2  # once for each queue
    store.append("t", 1, b"new", b"new")  # the queue was empty when it was looked at
    assert seen.topics() == {"t": TopicDepth(end - first + 2, end + 3)}
    assert looks == 2
    assert store.store.log.remove_first(store.state.position)
    assert seen.topics()["t"].stored == end - bounds(store.key("t", 0))[0] + 2
    assert looks == 4


def test_series_are_bounded_the_older_ones_stay(store: OpenStore) -> None:
    for name in ("a", "b", "c"):
        store.create_topic(name)
        store.append(name, 0, b"1", b"2")
        commit(store, "g", name, 1)
        commit(store, "h", name, 0)
    seen = backlog(store, 2)
    assert seen.topics() == {"t": TopicDepth(0, 0), "a": TopicDepth(2, 2), OTHERS: TopicDepth(4, 4)}
    assert list(seen.topics()) == ["t", "a", OTHERS]
    assert seen.lags() == {("g", "a"): 1, ("h", "a"): 2, (OTHERS, OTHERS): 6}
    assert backlog(store, 0).lags() == {(OTHERS, OTHERS): 9}
    store.delete_topic("a")
    assert seen.topics() == {"t": TopicDepth(0, 0), "b": TopicDepth(2, 2), OTHERS: TopicDepth(2, 2)}
