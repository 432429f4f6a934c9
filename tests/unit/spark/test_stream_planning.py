"""The progress of a stream, and the end of its next micro-batch."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.consuming.stored_offsets import StoredOffsets, TopicOnBroker
from minimq_common.model import MessageQueue, TopicId
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.planning import EARLIEST, LATEST, LookupResult, OffsetRange, Subscription
from pyspark_minimq.stream_planning import (
    AvailableOffsets,
    BatchLimits,
    StreamOffset,
    first_offset,
    is_below_minimum,
    limit_ends,
    messages_after,
)
from support.cases import for_each

A0, A1, B0 = MessageQueue("t", "a", 0), MessageQueue("t", "a", 1), MessageQueue("t", "b", 0)
AT_A, AT_B = TopicOnBroker("t", "a"), TopicOnBroker("t", "b")
T = Subscription(("t",))
ID_7, ID_8, ID_9 = TopicId(7, 70), TopicId(8, 80), TopicId(9, 90)
DONE = StreamOffset({A0: 15, A1: 3}, {A0: 10, A1: 0}, {AT_A: ID_7})


def ahead(bounds: Mapping[MessageQueue, StoredOffsets], done: StreamOffset = DONE) -> AvailableOffsets:
    return messages_after(done, LookupResult(bounds), T)


# ---- Where a stream is ----------------------------------------------------------------------------


def test_what_is_in_the_checkpoint_comes_back_as_it_was() -> None:
    text = json.dumps(DONE.to_json())
    assert StreamOffset.from_json(json.loads(text)) == DONE
    assert json.dumps(StreamOffset.from_json(json.loads(text)).to_json()) == text
    assert json.loads(text)["end"] == {"t": {"a": {"0": 15, "1": 3}}}
    assert json.loads(text)["topic_ids"] == {"t": {"a": [7, 70]}}


def test_a_beginning_differs_from_a_micro_batch_that_is_empty() -> None:
    begin = first_offset({A0: StoredOffsets(5, 9, ID_7)}, LATEST, fail_on_data_loss=True)
    outlook = ahead({A0: StoredOffsets(5, 9, ID_7)}, begin)
    assert outlook.available == 0
    assert outlook.until(outlook.ends).to_json() != begin.to_json()


def test_a_micro_batch_says_itself_what_it_holds() -> None:
    ids = {AT_A: ID_7, AT_B: ID_9}
    assert DONE.ranges() == [OffsetRange(A0, 10, 15, topic_id=ID_7), OffsetRange(A1, 0, 3, topic_id=ID_7)]
    assert StreamOffset({A0: 15}, topic_ids=ids).ranges() == []
    assert StreamOffset({A0: 15, B0: 2}, {A0: 20, B0: 2}, ids).ranges() == []


def test_where_a_stream_begins() -> None:
    bounds = {A0: StoredOffsets(5, 9, ID_7), B0: StoredOffsets(0, 4, ID_8)}
    assert first_offset(bounds, EARLIEST, fail_on_data_loss=True).end == {A0: 5, B0: 0}
    assert first_offset(bounds, {A0: 6, B0: LATEST}, fail_on_data_loss=True).end == {A0: 6, B0: 4}
    with pytest.raises(MinimqSparkError, match="startingOffsets has offset 3 for queue t/a/0, which has 5 to 9"):
        first_offset(bounds, {A0: 3, B0: 0}, fail_on_data_loss=True)


# ---- What comes next ------------------------------------------------------------------------------


def test_a_new_queue_begins_with_its_first_message() -> None:
    outlook = ahead({A0: StoredOffsets(0, 15, ID_7), A1: StoredOffsets(0, 3, ID_7), B0: StoredOffsets(2, 6, ID_9)})
    assert (outlook.starts[B0], outlook.ends[B0], outlook.topic_ids) == (2, 6, {AT_A: ID_7, AT_B: ID_9})


def test_a_new_queue_that_consumers_do_not_see_is_left_out_and_a_known_one_is_read_on() -> None:
    outlook = ahead(
        {
            A0: StoredOffsets(0, 15, ID_7),
            A1: StoredOffsets(0, 5, ID_7, is_shown=False),
            B0: StoredOffsets(0, 6, ID_9, is_shown=False),
        }
    )
    assert outlook.ends == {A0: 15, A1: 5}


def test_a_queue_whose_broker_is_silent_or_unknown_stays_where_it_is() -> None:
    bounds = {B0: StoredOffsets(0, 6, ID_9)}
    for sight in (LookupResult(bounds), LookupResult(bounds, silent={AT_A: "no answer"})):
        outlook = messages_after(DONE, sight, T)
        assert (outlook.starts, outlook.ends) == ({A0: 15, A1: 3, B0: 0}, {A0: 15, A1: 3, B0: 6})
        assert outlook.losses == ()
        assert outlook.topic_ids == {AT_A: ID_7, AT_B: ID_9}


def test_a_slave_may_have_less_than_was_read() -> None:
    bounds = {A0: StoredOffsets(0, 12, ID_7, from_slave=True), A1: StoredOffsets(1, 8, ID_7, from_slave=True)}
    outlook = ahead(bounds)
    assert (outlook.starts, outlook.ends, outlook.losses) == ({A0: 15, A1: 3}, {A0: 15, A1: 8}, ())


@for_each(
    ("bounds", "expected", "loss"),
    [
        (StoredOffsets(17, 20, ID_7), (17, 20), "offsets 15 to 16 of queue t/a/0 were deleted unread: it has 17 to 20"),
        (StoredOffsets(0, 12, ID_7), (12, 12), "queue t/a/0, read up to offset 15, has lost its end: it has 0 to 12"),
        (
            StoredOffsets(0, 40, ID_8),
            (0, 40),
            "queue t/a/0, read up to offset 15, was deleted and created again: it has 0 to 40",
        ),
        # of a broker that has lost its disk and numbers topics from the beginning
        (
            StoredOffsets(0, 40, TopicId(7, 71)),
            (0, 40),
            "queue t/a/0, read up to offset 15, was deleted and created again: it has 0 to 40",
        ),
    ],
)
def test_what_will_never_be_read_is_told(bounds: StoredOffsets, expected: tuple[int, int], loss: str) -> None:
    outlook = ahead({A0: bounds}, StreamOffset({A0: 15}, {}, {AT_A: ID_7}))
    assert (outlook.starts[A0], outlook.ends[A0]) == expected
    assert outlook.losses == (loss,)


def test_a_queue_that_was_deleted_is_told_and_forgotten() -> None:
    told = messages_after(DONE, LookupResult({B0: StoredOffsets(0, 6, ID_9)}, absent=frozenset({AT_A})), T)
    assert (told.ends, told.topic_ids) == ({B0: 6}, {AT_B: ID_9})
    assert told.losses[0] == "queue t/a/0, read up to offset 15, was deleted"
    assert len(told.losses) == 2


@pytest.mark.parametrize(
    "subscription", [Subscription(("u",)), Subscription(pattern="u|"), Subscription(queues=frozenset({A0}))]
)
def test_a_queue_that_is_not_subscribed_to_any_more_is_told_and_let_go_of(subscription: Subscription) -> None:
    outlook = messages_after(
        DONE, LookupResult({A0: StoredOffsets(0, 20, ID_7), A1: StoredOffsets(0, 20, ID_7)}), subscription
    )
    kept = {A0} if subscription.queues else set()
    assert outlook.ends.keys() == kept
    assert (
        outlook.losses[-1] == "queue t/a/1, read up to offset 3, is in the checkpoint and not in the options any more"
    )
    assert len(outlook.losses) == 2 - len(kept)


# ---- How far --------------------------------------------------------------------------------------


def test_when_there_are_more_queues_than_messages_each_has_its_turn() -> None:
    sizes = {A0: 100, A1: 100, B0: 100}
    starts = dict.fromkeys(sizes, 0)
    for _ in range(9):
        outlook = AvailableOffsets(starts, dict.fromkeys(starts, 100), {})
        starts = dict(limit_ends(outlook, BatchLimits(max_offsets=1), lambda _: 1.0))
    assert set(starts.values()) == {3}


def test_bytes_are_limited_by_the_size_of_messages() -> None:
    taken = limited({A0: 1000, A1: 1000}, BatchLimits(max_bytes=110_000), {A0: 100.0, A1: 1000.0})
    assert taken == {A0: 100, A1: 100}
    assert sum(limited({A0: 1000}, BatchLimits(max_bytes=1), {A0: 100.0}).values()) == 1
    assert limited({A0: 1000}, BatchLimits(max_bytes=50_000, max_offsets=70), {A0: 100.0}) == {A0: 70}


def limited(
    sizes: dict[MessageQueue, int], limits: BatchLimits, weights: Mapping[MessageQueue, float] | None = None
) -> dict[MessageQueue, int]:
    starts = dict.fromkeys(sizes, 50)
    outlook = AvailableOffsets(starts, {queue: 50 + size for queue, size in sizes.items()}, {})
    ends = limit_ends(outlook, limits, lambda queue: (weights or {})[queue])
    return {queue: end - 50 for queue, end in ends.items()}


@settings(deadline=None)
@given(sizes=st.lists(st.integers(0, 10**9), min_size=1, max_size=12), limit=st.integers(1, 10**6))
def test_a_limit_is_kept_and_used(sizes: list[int], limit: int) -> None:
    by_queue = {MessageQueue("t", "a", number): size for number, size in enumerate(sizes)}
    taken = limited(by_queue, BatchLimits(max_offsets=limit))
    assert sum(taken.values()) == min(limit, sum(sizes))
    assert all(0 <= taken[queue] <= size for queue, size in by_queue.items())


def test_it_waits_for_enough_but_not_for_ever() -> None:
    limits = BatchLimits(min_offsets=10, max_delay_s=60.0)
    assert is_below_minimum(9, limits, 59.0)
    assert not is_below_minimum(9, limits, 60.0)
    assert not is_below_minimum(10, limits, 0.0)
    assert not is_below_minimum(0, BatchLimits(), 0.0)


@for_each(
    "changes",
    [
        {"end": None},
        {"end": {"t": []}},
        {"end": {"t": {"b": {"x": 1}}}},
        {"end": {"t": {"b": {"0": -1}}}},
        {"end": {"t": {"b": {"0": "1"}}}},
        {"from": {"t": {"b": {"0": 1.5}}}},
        {"topic_ids": {"t": {"b": [1, 2, 3]}}},
        {"topic_ids": []},
        {"topic_ids": {}},
    ],
)
def test_offsets_of_a_damaged_checkpoint_are_rejected(changes: Mapping[str, object]) -> None:
    whole = StreamOffset({MessageQueue("t", "b", 0): 5}, topic_ids={TopicOnBroker("t", "b"): TopicId(1, 2)}).to_json()

    with pytest.raises(MinimqSparkError, match="the checkpoint holds offsets that are damaged"):
        StreamOffset.from_json({**whole, **changes})
