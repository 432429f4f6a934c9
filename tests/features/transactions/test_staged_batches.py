"""Batches that are staged and published by a real store: where they are, who sees them, and what outlives what."""

from __future__ import annotations

from pathlib import Path

import lmdb
import pytest

from minimq_broker.features.staged import jobs
from minimq_broker.state.facts import PermissionSet, Topic, TopicSet
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_common.errors import InvalidArgument, NoPermission, QueueNotFound, StoreFull, TopicNotFound
from support.checking import findings_of
from support.kernel_stores import TIMEOUT_S, make_batch, numbered_batch
from support.states import rows
from support.stores import OpenStore, Stores

SEGMENT_BYTES = 1 << 16
#: Two of these fill more than half of a small segment.
LARGE = bytes(20_000)


def test_what_cannot_be_staged(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    data = numbered_batch(7, 0)
    with pytest.raises(TopicNotFound):
        store.stage("x", 0, "none", 0, data)
    with pytest.raises(QueueNotFound):
        store.stage("x", 0, "t", 2, data)
    with pytest.raises(InvalidArgument, match="without a number"):
        store.stage("x", 0, "t", 0, make_batch([b"a"]))
    store.record(PermissionSet(4))
    with pytest.raises(NoPermission):
        store.stage("x", 0, "t", 0, data)
    store.record(PermissionSet(6))
    monkeypatch.setattr(store.store.disk, "rejection", lambda: StoreFull("the disk is nearly full"))
    with pytest.raises(StoreFull):
        store.stage("x", 0, "t", 0, data)
    assert store.state.tables["staged"].count == 0


@pytest.mark.parametrize(("bound", "value"), [("MAX_RELEASED_BYTES", 2 * len(LARGE)), ("MAX_RELEASED", 2)])
def test_a_large_transaction_is_published_in_parts_between_others(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(jobs, bound, value)
    for sequence in range(5):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, LARGE))
    store.decide("x", 0, {7: range(5)})
    commits = store.store.writer.figures.commits
    parts = [store.submit_publication("x") for _ in range(4)]
    other = store.submit("t", 1, make_batch([b"other"]))
    assert [part.result(TIMEOUT_S) for part in parts] == [2, 2, 1, 0]
    assert other.result(TIMEOUT_S).place.base_offset == 0
    assert store.store.writer.figures.commits == commits + 4
    assert store.bodies("t", 0) == [LARGE] * 5


def test_queues_that_are_gone_and_permissions_do_not_hinder_a_publication(store: OpenStore) -> None:
    for sequence in range(2):
        store.stage("x", 0, "t", sequence, numbered_batch(7, sequence))
    store.decide("x", 0, {7: [0, 1]})
    topic = store.state.topic("t")
    store.record(TopicSet(Topic("t", topic.topic_id, 1, 1, permission=4)))
    assert store.publish("x") == [2]
    assert store.bodies("t", 0) == [b"7/0", b"7/1"]


def test_nothing_is_published_on_a_full_disk(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.stage("x", 0, "t", 0, numbered_batch(7, 0))
    store.decide("x", 0, {7: [0]})
    monkeypatch.setattr(store.store.disk, "rejection", lambda: StoreFull("the disk is nearly full"))
    with pytest.raises(StoreFull):
        store.publish("x")
    monkeypatch.undo()
    assert store.publish("x") == [1]


# ---- Over starts, in several segments ------------------------------------------------------------------


def stage_over_segments(store: OpenStore) -> None:
    """Stage four batches for queue 0, so that each is in another segment."""
    for sequence in range(4):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, b"%d" % sequence, LARGE))
        store.append("t", 1, LARGE, LARGE)


def staged_over_segments(store: OpenStore) -> None:
    """Stage them, and decide on three."""
    stage_over_segments(store)
    store.decide("x", 0, {7: [3, 0, 1]})
    assert len(store.store.log.segments) > 3


WANTED = [b"3", LARGE, b"0", LARGE, b"1", LARGE]


def test_a_staged_batch_that_is_damaged_is_skipped(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores.open("m", alone=False)
    store.store.writer.lead(1)
    store.create_topic("t")
    for sequence, body in enumerate((b"first", b"spoilt body", b"last")):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, body))
    store.decide("x", 0, {7: [0, 1, 2]})
    damaged = store.state.tables["staged"].unpublished.of("x")[1]
    slave = stores.open("s", alone=False)
    slave.take_from(store)
    store.close()
    stores.damaged.add(store.path)
    [file] = (store.path / "commitlog").glob("*.mdb")
    file.write_bytes(file.read_bytes().replace(b"spoilt body", b"spoilt bode"))
    assert [finding for finding in findings_of(store.path) if "CRC-32C" in finding]

    again = stores.open("m", alone=False)
    again.store.writer.lead(2)
    assert again.publish("x") == [3]
    assert again.bodies("t", 0) == [b"first", b"last"]
    [record] = [record for record in caplog.records if "transaction are lost" in record.getMessage()]
    assert f"topic=t queue=0 bytes={damaged.size} position={damaged.position}" in record.getMessage()
    slave.take_from(again)  # whose copy is whole: it does as the master does
    slave.store.confirmation.confirm(slave.store.end)
    assert slave.bodies("t", 0) == [b"first", b"last"]
    assert rows(slave.state) == rows(again.state)

    again.stage("x", 1, "t", 0, numbered_batch(7, 3, b"next"))
    again.decide("x", 1, {7: [3]})
    assert again.publish("x") == [1]
    again.store.confirmation.confirm(again.store.end)
    again.close()
    last = stores.open("m", alone=False)
    assert not last.state.tables["staged"].saved_positions


def test_staged_batches_that_have_changed_places_are_skipped(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them is whole, and stands where the record of the other one leads to."""
    store = stores.open()
    store.create_topic("t")
    for sequence, body in enumerate((b"one", b"two", b"six")):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, body))
    store.decide("x", 0, {7: [0, 1, 2]})
    first, second, _ = store.state.tables["staged"].unpublished.of("x")
    store.close()
    stores.damaged.add(store.path)
    [file] = (store.path / "commitlog").glob("*.mdb")
    with lmdb.open(str(file), subdir=False, max_dbs=2) as env, env.begin(write=True, db=env.open_db(b"log")) as txn:
        keys = [batch.position.to_bytes(8, "big") for batch in (first, second)]
        one, two = [bytes(txn.get(key, b"")) for key in keys]
        assert len(one) == len(two)
        txn.put(keys[0], two)
        txn.put(keys[1], one)

    again = stores.open()
    assert again.publish("x") == [3]
    assert again.bodies("t", 0) == [b"six"]
    [record] = [record for record in caplog.records if "transaction are lost" in record.getMessage()]
    assert f"the entry at position {first.position} is not the staged batch" in record.getMessage()


def test_what_a_log_that_was_restored_does_not_hold_is_skipped(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", queues=2)
    staged_over_segments(store)
    store.close()
    for file in sorted((store.path / "commitlog").glob("*.mdb"))[:2]:
        file.unlink()
    again = stores.open(segment_bytes=SEGMENT_BYTES)
    assert min(again.state.tables["staged"].saved_positions) < again.store.log.start
    assert not again.store.remove_first(NOTHING_NEEDED)
    again.publish("x")
    assert again.bodies("t", 0)[:2] == WANTED[:2]
    again.stage("x", 1, "t", 0, numbered_batch(7, 9, b"next"))
    again.decide("x", 1, {7: [9]})
    assert again.publish("x") == [1]
    again.close()
    last = stores.open(segment_bytes=SEGMENT_BYTES)
    assert last.store.remove_first(NOTHING_NEEDED)


# ---- At other replicas ------------------------------------------------------------------------------
