"""An atomic append is stored as a whole or not at all, whatever is cut, repeated or rejected."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.features.work_queues.pop_runs import PopKey, PopOutcome, Resolve, Settle, Take
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.errors import Fenced, InvalidArgument, MinimqError, StaleSequence
from support.kernel_stores import TIMEOUT_S, numbered_batch
from support.states import rows, rows_from_scratch
from support.stores import OpenStore, Stores

GROUP = "g"


def atomic(
    store: OpenStore,
    number: int,
    topics: Sequence[str] = ("a", "b"),
    offsets: OffsetsCommitted | None = None,
    begins: Sequence[int] = (),
    settles: PopJob | None = None,
) -> list[AppendStatus]:
    """Append one batch to queue 0 of each topic, with numbers from `number` on; return how each was stored."""
    batches = [(topic, 0, numbered_batch(7, number + index)) for index, topic in enumerate(topics)]
    job = store.submit_atomic(batches, offsets, begins, settles=settles).result(TIMEOUT_S)
    return [each.status for each in job.batches]


def opened(stores: Stores, name: str = "data") -> OpenStore:
    store = stores.open(name)
    if not store.state.topics:
        for topic in ("in", "a", "b"):
            store.create_topic(topic, 2)
    return store


def up_to(store: OpenStore, offset: int) -> OffsetsCommitted:
    return OffsetsCommitted(GROUP, (CommittedOffset(*store.key("in", 0), offset),))


def settle_job(store: OpenStore, epoch: int, *spans: tuple[int, int]) -> PopJob:
    key = PopKey(GROUP, *store.key("in", 0))
    return PopJob(GROUP, [PopStep(1, key, Settle(epoch, spans, PopOutcome.DONE))], store.clock())


def take(store: OpenStore, most: int, until_ms: int) -> PopJob:
    """Deliver messages of the input."""
    key = PopKey(GROUP, *store.key("in", 0))
    end = store.store.queue_end(store.key("in", 0)).offset
    job = PopJob(GROUP, [PopStep(1, key, Take("c", most, until_ms), (0, end))], store.clock())
    store.store.writer.submit(job)
    store.record(lambda _: None)
    return job


def test_of_what_is_known_in_part_nothing_is_stored(stores: Stores) -> None:
    store = opened(stores)
    store.submit("a", 0, numbered_batch(7, 0)).result(TIMEOUT_S)
    with pytest.raises(StaleSequence):
        atomic(store, 0)
    assert store.bodies("b", 0) == []


@pytest.mark.replaced_by("machine")
def test_messages_that_the_group_has_consumed_already_reject_all(stores: Stores) -> None:
    store = opened(stores)
    store.append("in", 0, b"1", b"2", b"3")
    first = store.submit_atomic([("a", 0, numbered_batch(1, 0))], up_to(store, 2), [0])
    second = store.submit_atomic([("a", 0, numbered_batch(2, 0))], up_to(store, 3), [0])  # in the same commit, or not
    assert first.result(TIMEOUT_S).error is None
    with pytest.raises(Fenced, match="up to offset 2"):
        second.result(TIMEOUT_S)
    assert store.bodies("a", 0) == [b"1/0"]
    assert store.state.offset(GROUP, store.key("in", 0)) == 2


@pytest.mark.replaced_by("machine")
def test_messages_that_others_have_got_reject_all(stores: Stores) -> None:
    store = opened(stores)
    store.append("in", 0, b"1", b"2", b"3")
    first = take(store, 2, until_ms=store.clock() + 1_000)
    store.clock.now_ms += 2_000
    second = take(store, 3, until_ms=store.clock() + 1_000)
    assert second.steps[0].runs
    with pytest.raises(Fenced, match="others have got them"):
        atomic(store, 0, settles=settle_job(store, first.epoch, (0, 2)))
    assert store.bodies("a", 0) == []
    runs = [(run.first, run.end) for run in second.steps[0].runs]
    assert atomic(store, 2, settles=settle_job(store, second.epoch, *runs)) == [AppendStatus.OK] * 2
    with pytest.raises(Fenced):  # settled by then: a plain settle would not mind
        atomic(store, 4, settles=settle_job(store, second.epoch, *runs))
    assert store.bodies("a", 0) == [b"7/2"]


def test_a_rejected_settle_leaves_no_trace_for_others_of_the_same_commit(stores: Stores) -> None:
    store = opened(stores)
    store.append("in", 0, *[b"%d" % number for number in range(8)])
    taken = take(store, 4, until_ms=store.clock() + 60_000)
    good = store.submit_atomic([("a", 0, numbered_batch(1, 0))], settles=settle_job(store, taken.epoch, (0, 1)))
    bad = store.submit_atomic([("a", 0, numbered_batch(2, 0))], settles=settle_job(store, taken.epoch, (1, 2), (3, 5)))
    last = store.submit_atomic([("a", 0, numbered_batch(3, 0))], settles=settle_job(store, taken.epoch, (1, 4)))
    assert good.result(TIMEOUT_S).error is None
    with pytest.raises(MinimqError):
        bad.result(TIMEOUT_S)
    assert last.result(TIMEOUT_S).error is None
    assert store.bodies("a", 0) == [b"1/0", b"3/0"]


# ---- cuts -----------------------------------------------------------------------------------------------


DEAD = "%DLQ%g"


def resolve(store: OpenStore, *spans: tuple[int, int]) -> PopJob:
    """Settle dead letters."""
    queue = store.key(DEAD, 0)
    stored = store.store.bounds(queue)
    return PopJob(DEAD, [PopStep(1, PopKey(DEAD, *queue), Resolve(spans, stored[1]), stored)], store.clock())


def settled(store: OpenStore) -> list[tuple[int, int]]:
    popped = popped_queues(store.state).get((DEAD, *store.key(DEAD, 0)))
    return [] if popped is None else popped.settled_spans()


def test_a_dead_letter_is_settled_with_its_resent_message_and_again_without_harm(
    stores: Stores, tmp_path: Path
) -> None:
    store = opened(stores)
    store.create_topic(DEAD)
    for number in range(10):
        store.append(DEAD, 0, b"%d" % number)
    assert atomic(store, 1, ["a"], settles=resolve(store, (4, 5), (7, 9))) == [AppendStatus.OK]
    assert (store.bodies("a", 0), settled(store)) == ([b"7/1"], [(4, 5), (7, 9)])
    assert atomic(store, 1, ["a"], settles=resolve(store, (4, 5), (7, 9))) == [AppendStatus.ALREADY_STORED]
    with pytest.raises(InvalidArgument, match="ends at 10"):
        atomic(store, 2, [], settles=resolve(store, (9, 11)))
    atomic(store, 2, [], settles=resolve(store, (0, 5), (6, 8)))
    assert (store.bodies("a", 0), settled(store)) == ([b"7/1"], [(0, 5), (6, 9)])
    assert not store.state.groups()  # it is no group
    expected, popped = rows(store.state), popped_queues(store.state)[DEAD, *store.key(DEAD, 0)].runs
    store.close()
    assert rows_from_scratch(store.path, tmp_path / "scratch")["position"] == expected["position"]
    again = opened(stores)
    assert popped_queues(again.state)[DEAD, *again.key(DEAD, 0)].runs == popped
    again.delete_topic(DEAD)
    assert not popped_queues(again.state)


# ---- at random --------------------------------------------------------------------------------------------
