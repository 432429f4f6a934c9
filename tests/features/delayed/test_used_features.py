"""The log names a feature ahead of its first entry, so that no broker without it opens or follows the log."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, cast

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.commit_group import CommitGroup
from minimq_broker.commit.jobs import AtomicJob, Progress
from minimq_broker.features.registry import FEATURES, versions
from minimq_broker.log.clock import lease_clock
from minimq_broker.log.entry import effect, held_entry
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.leadership import Leadership
from minimq_broker.state.facts import Fact, FeatureUsed
from minimq_broker.state.queue_ends import BatchHeld, QueueKey
from minimq_common.errors import DataDirectoryVersion, Fenced, MinimqError, NotEnoughReplicas, StoreError
from minimq_common.replicas.replica_set import ReplicaSet
from minimq_proto.v1 import replication_pb2
from support.kernel_stores import make_batch
from support.replica_engine import with_engine
from support.stores import OpenStore, Stores

USED = FeatureUsed("delayed", 1)


def delay(store: OpenStore) -> None:
    store.delay("t", 0, store.clock.now_ms + 1_000, b"later")


class _Fenced(Progress):
    feature = "delayed"
    decided = False

    def decide(self, group: CommitGroup) -> Sequence[Fact]:
        type(self).decided = True
        raise Fenced("another consumer has the messages")


def content(folder: Path) -> dict[str, bytes]:
    files = (file for file in folder.rglob("*") if file.is_file() and "lock" not in file.name)
    return {str(file.relative_to(folder)): file.read_bytes() for file in files}


def test_the_first_entry_of_a_feature_follows_its_name(store: OpenStore, stores: Stores) -> None:
    store.create_topic("t")
    delay(store)
    delay(store)
    effects = [effect(entry, position) for position, entry in store.store.log.entries()]
    at = effects.index(USED)
    assert [type(each) for each in effects[at:]] == [FeatureUsed, BatchHeld, BatchHeld]
    store.close()
    assert stores.open().state.features == {"delayed": 1}


@pytest.mark.parametrize("is_saved", [True, False], ids=["saved", "in the log"])
def test_a_directory_is_not_opened_without_a_used_feature(
    store: OpenStore, stores: Stores, monkeypatch: pytest.MonkeyPatch, is_saved: bool
) -> None:
    store.create_topic("t")
    delay(store)
    if is_saved:
        store.close()
    copy = shutil.copytree(store.path, stores.folder / "copy", ignore=shutil.ignore_patterns("*lock"))
    before = content(copy)
    with monkeypatch.context() as without:
        without.delitem(FEATURES, "delayed")
        with pytest.raises(
            DataDirectoryVersion, match=r"copy has entries of the feature 'delayed', version 1, and this bro"
        ):
            stores.open("copy")
        if is_saved:
            assert content(copy) == before
            with pytest.raises(DataDirectoryVersion):
                check_directory(copy)
    stores.open("copy")


def test_a_feature_is_not_used_before_all_replicas_have_it(store: OpenStore) -> None:
    store.create_topic("t")
    end = store.store.end
    store.store.replica_features.announced = {1: versions(), 2: {}}
    with pytest.raises(NotEnoughReplicas, match="replica 2 has not announced the feature 'delayed', version 1"):
        delay(store)
    assert store.store.end == end
    store.append("t", 0, b"now")
    store.store.replica_features.announced = {1: versions(), 2: versions()}
    delay(store)


def append_fenced(store: OpenStore) -> MinimqError | None:
    rejected = Future[MinimqError | None]()
    store.store.writer.submit(AtomicJob((), _Fenced(), done=lambda job: rejected.set_result(job.error)))
    return rejected.result(20)


def test_an_atomic_append_decides_nothing_before_all_replicas_have_the_feature(store: OpenStore) -> None:
    store.store.replica_features.announced = {2: {}}
    assert isinstance(append_fenced(store), NotEnoughReplicas)
    assert not _Fenced.decided


def test_a_rejected_atomic_append_does_not_note_its_feature(store: OpenStore) -> None:
    store.create_topic("t")
    end = store.store.end
    assert isinstance(append_fenced(store), Fenced)
    store.append("t", 0, b"x")
    assert (store.store.state.features, store.store.entries(end, 1)) == ({}, store.store.entries(end, 1 << 20))


@pytest.mark.parametrize(
    ("tag", "note", "error"),
    [(99, b"", "a feature with the tag 99"), (FEATURES["staged"].tag, b"short", "position 0 has a malformed note")],
)
def test_a_slave_rejects_a_held_entry_that_it_cannot_read(stores: Stores, tag: int, note: bytes, error: str) -> None:
    slave = stores.open("slave", alone=False)
    entry = held_entry(tag, QueueKey(1, 0), 1, 0, note, make_batch([b"x"]), numbered=False)
    with pytest.raises(StoreError, match=error):
        slave.submit_entries(0, [entry]).result(20)
    assert (slave.store.end, slave.store.writer.has_failed) == (0, False)


def test_a_raised_version_is_noted(store: OpenStore, stores: Stores, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("t")
    delay(store)
    monkeypatch.setattr(FEATURES["delayed"], "version", 2)
    delay(store)
    assert store.store.state.features == {"delayed": 2}
    stores.damaged.add(store.path)  # for this build, at the end of the test


def test_a_master_rejects_a_replica_that_lacks_a_used_feature(tmp_path: Path) -> None:
    record = ReplicaSet(
        cluster="c",
        broker_name="broker-a",
        term=1,
        master_id=0,
        master_run=1,
        in_sync=frozenset({0}),
        version=1,
        sync=False,
        min_in_sync=1,
        lease_s=9.0,
        addresses={0: "host:0"},
    )

    async def requests() -> AsyncIterator[replication_pb2.ReplicaRequest]:
        await asyncio.Event().wait()
        yield replication_pb2.ReplicaRequest()

    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        await engine.writes.record(lambda _: USED)
        until = lease_clock() + record.lease_s
        leadership = Leadership(engine, record, 0, cast("Any", None), InSyncLimits(), until)
        follow = replication_pb2.Follow(replica_id=1, term=1, run=5, address="host:1")
        with pytest.raises(
            DataDirectoryVersion, match=r"log of broker-a has entries of .* replica 1 at host:1 is built"
        ):
            await leadership.serve(follow, requests(), cast("Any", None))
        assert leadership.progress() == {}
        assert engine.store.replica_features.announced == {}
        await leadership.stop()

    with_engine(tmp_path, test)


def test_a_higher_version_is_not_opened(store: OpenStore, stores: Stores) -> None:
    store.record(FeatureUsed("delayed", 2))
    store.close()
    stores.damaged.add(store.path)
    with pytest.raises(DataDirectoryVersion, match="'delayed', version 2"):
        stores.open()
