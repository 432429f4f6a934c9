"""Numbered batches that are sent more than once to one store: they are stored once, whatever happens in between."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import lmdb
import pytest

from minimq_broker.commit.jobs import AppendJob, AppendStatus
from minimq_broker.log.segment import Segment
from minimq_broker.state.producers import PendingBatches
from minimq_broker.state.state import State
from minimq_common.errors import StaleSequence, StoreFull
from support.checking import findings_of
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

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
    return job.status, job.place.queue_id, job.place.base_offset


def hold(store: OpenStore) -> threading.Event:
    """Keep the writer from taking what is handed in, until the event is set: all of that is then one group."""
    taken, go_on = threading.Event(), threading.Event()

    def decide(_: State) -> None:
        taken.set()
        go_on.wait(TIMEOUT_S)

    store.submit_fact(decide)
    assert taken.wait(TIMEOUT_S)
    return go_on


def test_a_full_disk_rejects_new_batches_and_acknowledges_a_repeated_one(store: OpenStore, disk: Disk) -> None:
    send(store, 0, 7).result(TIMEOUT_S)
    disk.error = lmdb.DiskError("mdb_txn_commit: No space left on device")
    assert isinstance(send(store, 0, 8).exception(TIMEOUT_S), StoreFull)
    assert answer(send(store, 1, 7)) == (STORED, 0, 0)


@pytest.mark.replaced_by("machine")
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

    [finding] = findings_of(store.path)
    assert finding.endswith("is batch 7 of producer 000000000000feed again, which is in queue 0 at offset 0")
