"""An atomic append is stored as a whole or not at all, whatever is cut, repeated or rejected."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import closing, suppress
from pathlib import Path

import pytest

from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.features.work_queues.pop_runs import Claim, PopKey, PopOutcome, Reopen, Settle, Take
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.entry import effect
from minimq_broker.state.facts import AtomicBegun, CommittedOffset, OffsetsCommitted
from minimq_common.errors import (
    CorruptEntry,
    Fenced,
    GroupConflict,
    InvalidArgument,
    MinimqError,
    StaleSequence,
    TopicNotFound,
)
from support.states import rows, rows_from_scratch
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

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
    job = store.submit_atomic(batches, offsets, begins, settles).result(TIMEOUT_S)
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
    store.store.submit(job)
    store.record(lambda _: None)
    return job


def test_all_is_visible_with_the_offsets(stores: Stores) -> None:
    store = opened(stores)
    store.append("in", 0, b"1", b"2")
    assert atomic(store, 0, offsets=up_to(store, 2), begins=[0]) == [AppendStatus.OK] * 2
    assert (store.bodies("a", 0), store.bodies("b", 0)) == ([b"7/0"], [b"7/1"])
    assert store.state.offset(GROUP, store.key("in", 0)) == 2


def test_one_batch_that_cannot_be_stored_rejects_all(stores: Stores) -> None:
    store = opened(stores)
    before = store.store.end
    with pytest.raises(TopicNotFound):
        atomic(store, 0, ("a", "none"), up_to(store, 0), [0])
    assert store.store.end == before
    assert store.state.offset(GROUP, store.key("in", 0)) is None
    assert atomic(store, 0) == [AppendStatus.OK] * 2  # its numbers were not used


def test_what_is_sent_again_is_stored_once_also_after_a_restart(stores: Stores) -> None:
    store = opened(stores)
    store.append("in", 0, b"1", b"2")
    atomic(store, 0, offsets=up_to(store, 2), begins=[0])
    assert atomic(store, 0, offsets=up_to(store, 2), begins=[0]) == [AppendStatus.ALREADY_STORED] * 2
    store.close()
    again = stores.open()
    assert atomic(again, 0, offsets=up_to(again, 2), begins=[0]) == [AppendStatus.ALREADY_STORED] * 2
    assert again.bodies("a", 0) == [b"7/0"]


def test_of_what_is_known_in_part_nothing_is_stored(stores: Stores) -> None:
    store = opened(stores)
    store.submit("a", 0, numbered_batch(7, 0)).result(TIMEOUT_S)
    with pytest.raises(StaleSequence):
        atomic(store, 0)
    assert store.bodies("b", 0) == []


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


def claim(store: OpenStore, *spans: tuple[int, int]) -> PopJob:
    """Settle dead letters."""
    queue = store.key(DEAD, 0)
    stored = store.store.bounds(queue)
    return PopJob(DEAD, [PopStep(1, PopKey(DEAD, *queue), Claim(spans, stored[1]), stored)], store.clock())


def settled(store: OpenStore) -> list[tuple[int, int]]:
    popped = store.state.popped.get((DEAD, *store.key(DEAD, 0)))
    return [] if popped is None else popped.settled_spans()


def test_a_dead_letter_is_settled_with_what_is_sent_for_it_and_once(stores: Stores, tmp_path: Path) -> None:
    store = opened(stores)
    store.create_topic(DEAD)
    for number in range(10):
        store.append(DEAD, 0, b"%d" % number)
    assert atomic(store, 1, ["a"], settles=claim(store, (4, 5), (7, 9))) == [AppendStatus.OK]
    assert (store.bodies("a", 0), settled(store)) == ([b"7/1"], [(4, 5), (7, 9)])
    assert atomic(store, 1, ["a"], settles=claim(store, (4, 5), (7, 9))) == [AppendStatus.ALREADY_STORED]
    for spans in (((4, 5),), ((0, 5),), ((2, 3), (8, 9)), ((6, 10),)):
        with pytest.raises(Fenced, match="settled already"):
            atomic(store, 2, ["a"], settles=claim(store, *spans))
    with pytest.raises(InvalidArgument, match="ends at 10"):
        atomic(store, 2, [], settles=claim(store, (9, 11)))
    atomic(store, 2, [], settles=claim(store, (0, 4), (6, 7)))
    assert (store.bodies("a", 0), settled(store)) == ([b"7/1"], [(0, 5), (6, 9)])
    assert not store.state.groups()  # it is no group
    expected, popped = rows(store.state), store.state.popped[DEAD, *store.key(DEAD, 0)].runs
    store.close()
    assert rows_from_scratch(store.path, tmp_path / "scratch")["position"] == expected["position"]
    again = opened(stores)
    assert again.state.popped[DEAD, *again.key(DEAD, 0)].runs == popped
    again.delete_topic(DEAD)
    assert not again.state.popped


def test_a_claim_is_rejected_with_a_queue_that_its_group_takes_from_no_more(stores: Stores) -> None:
    store = opened(stores)
    store.create_topic(DEAD)
    store.append(DEAD, 0, b"1")
    store.append("in", 0, b"1")
    again = PopStep(2, PopKey(GROUP, *store.key("in", 0)), Reopen([(0, 1)]), (0, 1))
    both = claim(store, (0, 1))
    both.steps = [again, *both.steps]
    with pytest.raises(GroupConflict, match="one by one"):
        atomic(store, 1, [], settles=both)
    assert settled(store) == []
    epoch = take(store, 1, until_ms=store.clock() + 60_000).epoch
    atomic(store, 1, ["a"], settles=settle_job(store, epoch, (0, 1)))
    both = claim(store, (0, 1))
    both.steps = [again, *both.steps]
    again.error = None
    atomic(store, 2, [], settles=both)
    assert settled(store) == [(0, 1)]
    assert [(run.first, run.end) for run in take(store, 1, until_ms=store.clock() + 60_000).steps[0].runs] == [(0, 1)]


def written(stores: Stores, name: str) -> tuple[list[tuple[int, int]], list[int]]:
    """Write some appends, plain and atomic ones; return where atomic ones begin and end, and where all entries begin.

    Each atomic one has a batch in a and b, and commits an offset.
    """
    store = opened(stores, name)
    store.append("in", 0, *[b"%d" % number for number in range(10)])
    for number in range(4):
        store.append("in", 0, b"between")
        atomic(store, 2 * number, offsets=up_to(store, number + 1), begins=[number])
    store.append("in", 0, b"last")
    with closing(store.store.log.entries()) as entries:
        found = [(position, effect(entry, position), len(entry)) for position, entry in entries]
    places = [(at, at + size + fact.size) for at, fact, size in found if isinstance(fact, AtomicBegun)]
    store.close()
    assert len(places) == 4
    return places, [at for at, _, _ in found]


def assert_whole(store: OpenStore) -> None:
    """Each atomic append is there with all that it has, or with nothing."""
    number = len(store.bodies("a", 0))
    assert store.bodies("a", 0) == [b"7/%d" % (2 * each) for each in range(number)]
    assert store.bodies("b", 0) == [b"7/%d" % (2 * each + 1) for each in range(number)]
    assert store.state.offset(GROUP, store.key("in", 0)) == (number or None)


def expected_end(places: Sequence[tuple[int, int]], cut: int) -> int:
    return next((begin for begin, end in places if begin < cut < end), cut)


def test_a_log_that_is_cut_anywhere_has_whole_appends_only(stores: Stores) -> None:
    places, boundaries = written(stores, "whole")
    begun = boundaries.index(places[0][0])
    for index, cut in enumerate(boundaries[begun:]):
        name = f"cut-{index}"
        written(stores, name)
        with closing(CommitLog(stores.folder / name / "commitlog", 1 << 30)) as log:
            with closing(Checkpoint(stores.folder / name / "state.mdb")) as checkpoint:
                checkpoint.clear()  # a checkpoint ahead of the log would be of another one
            log.truncate(cut)
        store = stores.open(name, alone=False)
        assert store.store.end == expected_end(places, cut)
        store.store.confirm(store.store.end)
        assert_whole(store)


def test_a_slave_that_is_cut_anywhere_has_whole_appends_only(stores: Stores) -> None:
    master = opened(stores, "master")
    for number in range(3):
        atomic(master, 2 * number, offsets=None)
    places, boundaries = [], []
    with closing(master.store.log.entries()) as entries:
        for position, entry in entries:
            boundaries.append(position)
            fact = effect(entry, position)
            if isinstance(fact, AtomicBegun):
                places.append((position, position + len(entry) + fact.size))
    for index, cut in enumerate(boundaries[boundaries.index(places[0][0]) :]):
        slave = stores.open(f"slave-{index}", alone=False)
        slave.take_from(master)
        slave.store.truncate(cut)
        assert slave.store.end == expected_end(places, cut)
        slave.store.confirm(slave.store.end)
        assert len(slave.bodies("a", 0)) == len(slave.bodies("b", 0)) == sum(end <= cut for _, end in places)
        slave.take_from(master)
        assert slave.store.end == master.store.end


def test_a_slave_takes_no_part_of_an_append(stores: Stores) -> None:
    master, slave = opened(stores, "master"), stores.open("slave", alone=False)
    begin = master.store.end
    slave.take_from(master)
    atomic(master, 0, ("a", "b", "in"))
    entries = master.store.entries(begin, 1 << 20)
    assert len(entries) == 4
    for count in (1, 2, 3):
        with pytest.raises(CorruptEntry, match="cut an atomic append"):
            slave.submit_entries(begin, entries[:count]).result(TIMEOUT_S)
    slave.submit_entries(begin, entries).result(TIMEOUT_S)
    assert slave.bodies("a", 0) == []  # not confirmed
    slave.store.confirm(slave.store.end)
    assert slave.bodies("in", 0) == [b"7/2"]


@pytest.mark.parametrize("max_bytes", [1, 100, 300, 700])
def test_a_frame_never_ends_within_an_append(stores: Stores, max_bytes: int) -> None:
    master, slave = opened(stores, "master"), stores.open("slave", alone=False)
    for number in range(5):
        atomic(master, 2 * number)
        master.append("in", 0, b"between")
    while slave.store.end < master.store.end:
        slave.take_from(master, max_bytes)
        slave.store.confirm(slave.store.end)
        if "b" in slave.state.topics:
            assert len(slave.bodies("a", 0)) == len(slave.bodies("b", 0))


# ---- at random --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", range(6))
def test_the_group_has_consumed_what_was_produced_of_it(stores: Stores, seed: int) -> None:
    """Members that repeat, come late and overlap: each message of the input leads to one of the output."""
    chance = random.Random(seed)
    store = opened(stores)
    store.append("in", 0, *[b"%d" % number for number in range(2_000)])
    numbers = [0] * 3
    sent: list[tuple[int, int, int, int]] = []
    for _ in range(120):
        if sent and chance.random() < 0.3:
            member, number, begin, end = chance.choice(sent)  # once more, maybe much later
        else:
            member = chance.randrange(3)
            number = numbers[member]
            numbers[member] += 2
            committed = store.state.offset(GROUP, store.key("in", 0)) or 0
            begin = max(0, committed - chance.choice([0, 0, 0, 1, 5]))
            end = begin + chance.randrange(1, 9)
            sent.append((member, number, begin, end))
        bodies = [b"%d" % each for each in range(begin, end)]
        batches = [
            (topic, chance.randrange(2), numbered_batch(member + 1, number + index, *bodies))
            for index, topic in enumerate("ab")
        ]
        with suppress(Fenced, StaleSequence):
            store.submit_atomic(batches, up_to(store, end), [begin]).result(TIMEOUT_S)
        if chance.random() < 0.03:
            store.close()
            store = stores.open()
    done = store.state.offset(GROUP, store.key("in", 0)) or 0
    for topic in "ab":
        found = [int(body) for queue_id in (0, 1) for body in store.bodies(topic, queue_id)]
        assert sorted(found) == list(range(done))
