"""Numbered batches that are sent more than once to one store: they are stored once, whatever happens in between."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import lmdb
import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.commit.jobs import AppendJob, AppendStatus
from minimq_broker.log.segment import Segment
from minimq_broker.state.facts import Topic, TopicSet
from minimq_broker.state.producers import PendingBatches
from minimq_broker.state.state import State
from minimq_common.errors import StaleSequence, StoreFull
from minimq_common.model import Permission
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

P = 0xFEED
STORED = AppendStatus.ALREADY_STORED


class Disk:
    """A disk for the writes of segments: they wait while it is held, then fail if there is an error."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.reached = threading.Event()
        self._free = threading.Event()
        self._free.set()

    def hold(self) -> None:
        self.reached.clear()
        self._free.clear()

    def let_go(self) -> None:
        self._free.set()

    def pass_on(self) -> None:
        self.reached.set()
        assert self._free.wait(TIMEOUT_S)
        if self.error:
            raise self.error


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    made = Disk()
    write = Segment.write

    def write_through(segment: Segment, *written: Any) -> None:
        made.pass_on()
        write(segment, *written)

    monkeypatch.setattr(Segment, "write", write_through)
    yield made
    made.let_go()


def send(
    store: OpenStore, queue_id: int, sequence: int, *, topic: str = "t", unsettled: int = 1 << 20
) -> Future[AppendJob]:
    return store.submit(topic, queue_id, numbered_batch(P, sequence, b"%d" % sequence, unsettled=unsettled))


def answer(future: Future[AppendJob]) -> tuple[AppendStatus, int, int]:
    """Return status, queue and offset."""
    job = future.result(TIMEOUT_S)
    return job.status, job.stored_queue_id, job.base_offset


def hold(store: OpenStore) -> threading.Event:
    """Keep the writer from taking what is handed in, until the event is set: all of that is then one group."""
    taken, go_on = threading.Event(), threading.Event()

    def decide(_: State) -> None:
        taken.set()
        go_on.wait(TIMEOUT_S)

    store.submit_fact(decide)
    assert taken.wait(TIMEOUT_S)
    return go_on


def test_a_repeat_is_answered_with_where_the_batch_is(stores: Stores, store: OpenStore) -> None:
    store.append("t", 1, b"ahead")
    first = send(store, 1, 5).result(TIMEOUT_S)
    position = store.state.position
    stores.clock.now_ms += 1000

    assert (first.status, first.stored_queue_id, first.base_offset) == (AppendStatus.OK, 1, 1)
    for queue_id in (0, 1):
        repeat = send(store, queue_id, 5).result(TIMEOUT_S)
        assert (repeat.status, repeat.stored_queue_id, repeat.base_offset) == (STORED, 1, 1)
        assert repeat.stored_ms == first.stored_ms
    assert store.state.position == position
    assert store.bodies("t", 0) == []


def test_a_copy_behind_a_group_that_is_not_committed_yet_waits_for_it(store: OpenStore, disk: Disk) -> None:
    disk.hold()
    first = send(store, 0, 7)
    assert disk.reached.wait(TIMEOUT_S)
    copies = [send(store, 1, 7) for _ in range(3)]
    assert not any(future.done() for future in (first, *copies))
    disk.let_go()
    assert answer(first) == (AppendStatus.OK, 0, 0)
    assert {answer(future) for future in copies} == {(STORED, 0, 0)}
    assert store.bodies("t", 1) == []


def test_nothing_of_a_group_is_told_before_its_commit(store: OpenStore, disk: Disk) -> None:
    go_on = hold(store)
    disk.hold()
    futures = [send(store, 0, 7), send(store, 1, 7)]
    go_on.set()
    assert disk.reached.wait(TIMEOUT_S)
    assert not any(future.done() for future in futures)
    disk.let_go()
    assert [answer(future) for future in futures] == [(AppendStatus.OK, 0, 0), (STORED, 0, 0)]


def test_a_group_that_fails_leaves_nothing_to_repeat(store: OpenStore, disk: Disk) -> None:
    go_on = hold(store)
    first, copy = send(store, 0, 7), send(store, 1, 7)
    disk.error = lmdb.DiskError("mdb_txn_commit: No space left on device")
    go_on.set()
    assert isinstance(copy.exception(TIMEOUT_S), StoreFull)
    assert isinstance(first.exception(TIMEOUT_S), StoreFull)
    disk.error = None
    assert answer(send(store, 1, 7)) == (AppendStatus.OK, 1, 0)
    assert answer(send(store, 0, 7)) == (STORED, 1, 0)


def test_a_full_disk_rejects_what_is_new_and_answers_what_is_stored(store: OpenStore, disk: Disk) -> None:
    send(store, 0, 7).result(TIMEOUT_S)
    go_on = hold(store)
    disk.error = lmdb.DiskError("mdb_txn_commit: No space left on device")
    new, repeat = send(store, 0, 8), send(store, 1, 7)
    go_on.set()
    assert isinstance(new.exception(TIMEOUT_S), StoreFull)
    assert answer(repeat) == (STORED, 0, 0)


@pytest.mark.parametrize("checkpoint", ["none", "at the end", "in between"])
def test_repeats_are_known_after_every_start(stores: Stores, checkpoint: str) -> None:
    store = stores.open(checkpoint_interval_s=0.001 if checkpoint == "in between" else 3600.0)
    store.create_topic("t", 2)
    for sequence in range(50):
        send(store, sequence % 2, sequence, unsettled=20).result(TIMEOUT_S)
    name = "data"
    if checkpoint == "at the end":
        store.close()
    else:  # as after kill -9
        name = "copy"
        shutil.copytree(store.path, stores.folder / name)
    again = stores.open(name)

    assert [answer(send(again, 0, sequence)) for sequence in range(29, 50)] == [
        (STORED, sequence % 2, sequence // 2) for sequence in range(29, 50)
    ]
    for sequence in range(29):
        assert isinstance(send(again, 0, sequence).exception(TIMEOUT_S), StaleSequence)
    assert len(again.bodies("t", 0)) == len(again.bodies("t", 1)) == 25


@pytest.mark.parametrize("together", [True, False])
def test_what_its_producer_has_settled_is_rejected_for_good(store: OpenStore, together: bool) -> None:
    go_on = hold(store) if together else threading.Event()
    later, stale, possible = (
        send(store, 0, 10, unsettled=3),
        send(store, 0, 6, unsettled=0),
        send(store, 0, 7, unsettled=0),
    )
    go_on.set()
    assert answer(later) == (AppendStatus.OK, 0, 0)
    error = stale.exception(TIMEOUT_S)
    assert isinstance(error, StaleSequence)
    assert not error.retriable
    assert "batch 6 of producer 000000000000feed comes too late" in str(error)
    assert answer(possible) == (AppendStatus.OK, 0, 1)
    assert store.bodies("t", 0) == [b"10", b"7"]


def test_a_repeat_is_answered_though_its_queue_takes_nothing_any_more(store: OpenStore) -> None:
    send(store, 1, 7).result(TIMEOUT_S)
    topic = store.state.topic("t")
    store.record(TopicSet(Topic("t", topic.topic_id, 2, 1, Permission.READ)))
    assert answer(send(store, 1, 7)) == (STORED, 1, 0)


# ---- looking at a directory ---------------------------------------------------------------------


def test_the_check_finds_a_batch_that_is_stored_twice(
    stores: Stores, store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores.damaged.add(store.path)
    send(store, 0, 7).result(TIMEOUT_S)
    with monkeypatch.context() as patch:
        patch.setattr(PendingBatches, "find", lambda *_: None)
        send(store, 1, 7).result(TIMEOUT_S)
    store.delete_topic("t")
    store.create_topic("t")
    send(store, 0, 7).result(TIMEOUT_S)
    store.close()

    [finding] = check_directory(store.path).findings
    assert finding.endswith("is batch 7 of producer 000000000000feed again, which is in queue 0 at offset 0")
