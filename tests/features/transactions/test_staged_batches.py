"""Batches that are staged and published by a real store: where they are, who sees them, and what outlives what."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import lmdb
import pytest

from minimq_broker.backup.check import check_directory, compare_directories
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.backup.inspect import inspect_directory
from minimq_broker.commit import commit_group
from minimq_broker.commit.jobs import AppendStatus, ReplicaJob
from minimq_broker.features.retention.retention import NOTHING_NEEDED
from minimq_broker.features.staged.staging import TransactionId
from minimq_broker.state.facts import PermissionSet, StagedSequences, Topic, TopicSet, TransactionDecided
from minimq_common.errors import (
    InvalidArgument,
    NoPermission,
    QueueNotFound,
    StoreFull,
    TopicNotFound,
    TransactionEnded,
)
from support.states import rows, rows_from_scratch
from support.stores import TIMEOUT_S, OpenStore, Stores, make_batch, numbered_batch
from support.waiting import wait_until

SEGMENT_BYTES = 1 << 16
#: Two of these fill more than half of a small segment.
LARGE = bytes(20_000)


def test_what_is_staged_is_seen_once_it_is_published(store: OpenStore) -> None:
    store.append("t", 0, b"before")
    first = store.stage("x", 0, "t", 0, numbered_batch(7, 0, b"a", b"b"))
    store.stage("x", 0, "t", 1, numbered_batch(7, 1, b"c"))
    assert (first.base_offset, first.stored_queue_id, first.status) == (-1, 0, AppendStatus.OK)
    assert first.stored_ms == store.clock.now_ms
    store.append("t", 0, b"between")
    assert store.bodies("t", 0) == [b"before", b"between"]
    assert store.bodies("t", 1) == []
    store.grown.clear()

    store.decide("x", 0, {7: [0, 1]})
    assert store.bodies("t", 1) == []
    assert store.grown == []
    store.clock.now_ms += 5
    assert store.publish("x") == [2]

    assert store.bodies("t", 0) == [b"before", b"between", b"a", b"b"]
    assert store.bodies("t", 1) == [b"c"]
    assert set(store.grown) == {store.key("t", 0), store.key("t", 1)}
    assert [stored.stored_ms for stored in store.read("t", 1, 0)] == [store.clock.now_ms]
    table = store.state.transactions
    assert (table.count, table.size, table.unpublished) == (0, 0, {})
    assert store.publish("x") == []


def test_what_the_decision_does_not_name_is_let_go_of(store: OpenStore) -> None:
    for number, sequence in ((0, 0), (1, 1), (1, 2), (2, 3)):
        store.stage("x", number, "t", 0, numbered_batch(7, sequence))
    store.stage("x", 1, "t", 0, numbered_batch(8, 0))
    store.stage("y", 0, "t", 0, numbered_batch(7, 4))
    store.decide("x", 1, {8: [0], 7: [2]})
    store.publish("x")
    assert store.bodies("t", 0) == [b"8/0", b"7/2"]  # in the order of the decision
    assert sorted(store.state.transactions) == [("x", 2, 7), ("y", 0, 7)]


def test_a_batch_is_staged_once(store: OpenStore) -> None:
    data = numbered_batch(7, 0, b"a")
    together = [store.submit("t", queue_id, data, TransactionId("x", 0)) for queue_id in (0, 1, 0)]
    jobs = [future.result(TIMEOUT_S) for future in together] + [store.stage("x", 0, "t", 1, data)]
    assert [job.status for job in jobs] == [AppendStatus.OK] + [AppendStatus.ALREADY_STORED] * 3
    assert {(job.stored_queue_id, job.stored_ms, job.base_offset) for job in jobs} == {(0, jobs[0].stored_ms, -1)}
    assert store.state.transactions.count == 1
    # Another transaction is another matter, and so is a batch that is not staged.
    assert store.stage("x", 1, "t", 1, data).status is AppendStatus.OK
    assert store.submit("t", 1, data).result(TIMEOUT_S).status is AppendStatus.OK
    store.create_topic("u")
    with pytest.raises(InvalidArgument, match="stored in another topic already, not in 'u'"):
        store.stage("x", 0, "u", 0, data)


def test_what_cannot_be_staged(store: OpenStore) -> None:
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
    store.store._writer.rejection = lambda: StoreFull("the disk is nearly full")
    with pytest.raises(StoreFull):
        store.stage("x", 0, "t", 0, data)
    assert store.state.transactions.count == 0


def test_a_transaction_that_is_decided_takes_no_more(store: OpenStore) -> None:
    store.stage("x", 4, "t", 0, numbered_batch(7, 0))
    store.decide("x", 4, {7: [0]})
    for number in (3, 4):
        with pytest.raises(TransactionEnded, match=f"transaction {number} of 'x' .* has a decision about 4"):
            store.stage("x", number, "t", 0, numbered_batch(7, 1))
    store.stage("x", 5, "t", 0, numbered_batch(7, 1))
    store.stage("y", 0, "t", 0, numbered_batch(7, 1))


@pytest.mark.parametrize(("bound", "value"), [("MAX_PUBLISHED_BYTES", 2 * len(LARGE)), ("MAX_PUBLISHED", 2)])
def test_a_large_transaction_is_published_in_parts_between_others(
    store: OpenStore, monkeypatch: pytest.MonkeyPatch, bound: str, value: int
) -> None:
    monkeypatch.setattr(commit_group, bound, value)
    for sequence in range(5):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, LARGE))
    store.decide("x", 0, {7: range(5)})
    commits = store.store.figures.commits
    parts = [store.submit_publication("x") for _ in range(4)]
    other = store.submit("t", 1, make_batch([b"other"]))
    assert [part.result(TIMEOUT_S) for part in parts] == [2, 2, 1, 0]
    assert other.result(TIMEOUT_S).base_offset == 0
    assert store.store.figures.commits == commits + 4
    assert store.bodies("t", 0) == [LARGE] * 5


def test_a_deleted_topic_takes_what_was_staged_for_it_along(store: OpenStore) -> None:
    store.create_topic("u")
    for sequence, topic in enumerate(("t", "u", "t", "u")):
        store.stage("x", sequence // 2, topic, 0, numbered_batch(7, sequence))
    store.decide("x", 0, {7: [0, 1]})
    store.delete_topic("t")
    table = store.state.transactions
    assert table.count == 2  # one waits for its publication, one for a decision
    store.create_topic("t")  # another one of that name gets nothing of it
    assert store.publish("x") == [1]
    store.decide("x", 1, {7: [3]})
    assert store.publish("x") == [1]
    assert store.bodies("t", 0) == []
    assert store.bodies("u", 0) == [b"7/1", b"7/3"]


def test_queues_that_are_gone_and_permissions_do_not_hinder_a_publication(store: OpenStore) -> None:
    for sequence in range(2):
        store.stage("x", 0, "t", sequence, numbered_batch(7, sequence))
    store.decide("x", 0, {7: [0, 1]})
    topic = store.state.topic("t")
    store.record(TopicSet(Topic("t", topic.topic_id, 1, 1, permission=4)))
    assert store.publish("x") == [2]
    assert store.bodies("t", 0) == [b"7/0", b"7/1"]


def test_nothing_is_published_on_a_full_disk(store: OpenStore) -> None:
    store.stage("x", 0, "t", 0, numbered_batch(7, 0))
    store.decide("x", 0, {7: [0]})
    store.store._writer.rejection = lambda: StoreFull("the disk is nearly full")
    with pytest.raises(StoreFull):
        store.publish("x")
    store.store._writer.rejection = lambda: None
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


@pytest.mark.parametrize("saved", [True, False], ids=["checkpoint", "no checkpoint"])
def test_a_transaction_goes_on_after_a_start(stores: Stores, saved: bool, tmp_path: Path) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", queues=2)
    staged_over_segments(store)
    before = rows(store.state)
    store.close()
    if not saved:
        assert rows_from_scratch(store.path, tmp_path / "scratch") == before
        (store.path / "state.mdb").unlink()
    again = stores.open(segment_bytes=SEGMENT_BYTES)
    assert {**rows(again.state), **{key: before[key] for key in ("position", "term", "terms")}} == before
    again.publish("x")
    assert again.bodies("t", 0) == WANTED
    with pytest.raises(TransactionEnded):
        again.stage("x", 0, "t", 0, numbered_batch(7, 2))


def test_segments_stay_until_what_is_staged_there_is_published(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", queues=2)
    store.append("t", 1, LARGE, LARGE)
    store.append("t", 1, LARGE, LARGE)
    staged_over_segments(store)
    store.close()
    again = stores.open(segment_bytes=SEGMENT_BYTES)  # all is saved
    oldest = min(batch.position for batch in again.state.transactions.next_to_publish("x", 1 << 40, 100))
    while again.store.old.remove_first(NOTHING_NEEDED):
        pass
    assert 0 < again.store.log.start <= oldest < again.store.log.segments[1].start
    again.publish("x")
    assert again.bodies("t", 0) == WANTED
    again.close()
    last = stores.open(segment_bytes=SEGMENT_BYTES)
    while last.store.old.remove_first(NOTHING_NEEDED):
        pass
    assert last.store.log.start > oldest


def test_a_checkpoint_lets_go_of_what_was_published_before_it(stores: Stores) -> None:
    store = stores.open("m", alone=False, checkpoint_interval_s=0.01)
    writer = store.store._writer
    store.store.lead(1, waits_for_replicas=True)

    def end() -> int:
        """Return where the log ends with all that was handed in; nothing of it may be confirmed."""
        store.store.call(lambda: None)
        return store.store.end

    def publish(number: int) -> int:
        store.submit("t", 0, numbered_batch(7, number), TransactionId("x", number))
        store.submit_fact(TransactionDecided("x", number, b"", (StagedSequences(7, (number,)),)))
        store.submit_publication("x")
        return end()

    store.submit_fact(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
    store.store.confirm(end())
    first = publish(0)
    wait_until(lambda: writer._to_save is not None and writer._to_save.position == first, TIMEOUT_S)
    second = publish(1)
    both = store.state.transactions.needed_from
    store.store.confirm(first)
    wait_until(lambda: store.store.saved_position == first, TIMEOUT_S)
    assert end() == second
    assert both < store.state.transactions.needed_from < NOTHING_NEEDED
    store.store.confirm(second)
    wait_until(lambda: store.state.transactions.needed_from == NOTHING_NEEDED, TIMEOUT_S)


def test_a_staged_batch_that_is_damaged_is_skipped(
    stores: Stores, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = stores.open("m", alone=False)
    store.store.lead(1)
    store.create_topic("t")
    for sequence, body in enumerate((b"first", b"spoilt body", b"last")):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, body))
    store.decide("x", 0, {7: [0, 1, 2]})
    damaged = list(store.state.transactions.next_to_publish("x", 1 << 20, 100))[1]
    slave = stores.open("s", alone=False)
    slave.take_from(store)
    store.close()
    stores.damaged.add(store.path)
    [file] = (store.path / "commitlog").glob("*.mdb")
    file.write_bytes(file.read_bytes().replace(b"spoilt body", b"spoilt bode"))
    assert [finding for finding in check_directory(store.path).findings if "CRC-32C" in finding]

    again = stores.open("m", alone=False)
    again.store.lead(2)
    assert again.publish("x") == [3]
    assert again.bodies("t", 0) == [b"first", b"last"]
    [record] = [record for record in caplog.records if "of a transaction are lost" in record.getMessage()]
    assert f"transaction=x number=0 topic=t queue=0 batches=1 bytes={damaged.size} position={damaged.position}" in (
        record.getMessage()
    )
    slave.take_from(again)  # whose copy is whole: it does as the master does
    slave.store.confirm(slave.store.end)
    assert slave.bodies("t", 0) == [b"first", b"last"]
    assert rows(slave.state) == rows(again.state)

    again.stage("x", 1, "t", 0, numbered_batch(7, 3, b"next"))
    again.decide("x", 1, {7: [3]})
    assert again.publish("x") == [1]
    again.store.confirm(again.store.end)
    again.close()
    last = stores.open("m", alone=False)
    assert last.state.transactions.needed_from == NOTHING_NEEDED


def test_staged_batches_that_have_changed_places_are_skipped(stores: Stores, caplog: pytest.LogCaptureFixture) -> None:
    """Each of them is whole, and stands where the record of the other one leads to."""
    store = stores.open()
    store.create_topic("t")
    for sequence, body in enumerate((b"one", b"two", b"six")):
        store.stage("x", 0, "t", 0, numbered_batch(7, sequence, body))
    store.decide("x", 0, {7: [0, 1, 2]})
    first, second, _ = store.state.transactions.next_to_publish("x", 1 << 20, 100)
    store.close()
    stores.damaged.add(store.path)
    [file] = (store.path / "commitlog").glob("*.mdb")
    with lmdb.open(str(file), subdir=False, max_dbs=2) as env, env.begin(write=True, db=env.open_db(b"log")) as txn:
        keys = [batch.position.to_bytes(8, "big") for batch in (first, second)]
        one, two = [bytes(txn.get(key, b"")) for key in keys]
        assert len(one) == len(two) == first.size
        txn.put(keys[0], two)
        txn.put(keys[1], one)

    again = stores.open()
    assert again.publish("x") == [3]
    assert again.bodies("t", 0) == [b"six"]
    [record] = [record for record in caplog.records if "of a transaction are lost" in record.getMessage()]
    assert f"the entry at position {first.position} is not the staged batch" in record.getMessage()


def test_what_a_log_that_was_restored_does_not_hold_is_skipped(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", queues=2)
    staged_over_segments(store)
    store.close()
    for file in sorted((store.path / "commitlog").glob("*.mdb"))[:2]:
        file.unlink()
    again = stores.open(segment_bytes=SEGMENT_BYTES)
    assert again.state.transactions.needed_from < again.store.log.start
    assert not again.store.old.remove_first(NOTHING_NEEDED)
    again.publish("x")
    assert again.bodies("t", 0)[:2] == WANTED[:2]
    again.stage("x", 1, "t", 0, numbered_batch(7, 9, b"next"))
    again.decide("x", 1, {7: [9]})
    assert again.publish("x") == [1]
    again.close()
    last = stores.open(segment_bytes=SEGMENT_BYTES)
    assert last.store.old.remove_first(NOTHING_NEEDED)


def test_segments_stay_until_a_checkpoint_says_that_their_topic_is_gone(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    for topic in ("t", "u"):
        store.create_topic(topic, queues=2)
    for sequence, topic in enumerate(("u", "t")):
        store.stage("x", 0, topic, 0, numbered_batch(7, sequence))
        for _ in range(3):
            store.append("u", 1, LARGE, LARGE)
    store.decide("x", 0, {7: [0, 1]})
    store.close()
    again = stores.open(segment_bytes=SEGMENT_BYTES)
    again.delete_topic("t")
    while again.store.old.remove_first(NOTHING_NEEDED):
        pass
    assert again.store.log.start == 0
    assert again.publish("x") == [1]
    assert again.bodies("u", 0) == [b"7/0"]


# ---- At other replicas ------------------------------------------------------------------------------


@pytest.fixture
def pair(stores: Stores) -> tuple[OpenStore, OpenStore]:
    master, slave = (stores.open(name, alone=False, segment_bytes=SEGMENT_BYTES) for name in ("m", "s"))
    master.store.lead(1)
    master.create_topic("t", queues=2)
    return master, slave


@pytest.mark.parametrize("cut", range(1, 8))
def test_a_slave_that_takes_over_publishes_the_rest(pair: tuple[OpenStore, OpenStore], cut: int) -> None:
    """Wherever what the slave has of the publication ends, each batch is published once."""
    master, slave = pair
    staged_over_segments(master)
    decided = master.store.end
    master.publish("x")
    for entry in range(cut):
        slave.take_from(master, max_bytes=(decided - slave.store.end) if entry == 0 else 1)
    slave.store.lead(2)
    slave.publish("x")
    assert slave.bodies("t", 0) == WANTED == master.bodies("t", 0)
    master.store.follow()
    master.store.truncate(min(slave.state.terms[-1].position, master.store.end))
    master.take_from(slave)
    assert rows(master.state) == rows(slave.state)


def test_a_slave_keeps_what_its_master_may_decide_on(stores: Stores, pair: tuple[OpenStore, OpenStore]) -> None:
    master, slave = pair
    for _ in range(2):
        master.append("t", 1, LARGE, LARGE)
    stage_over_segments(master)
    while slave.store.end < master.store.end:
        slave.take_from(master, max_bytes=1)
    slave.store.confirm(slave.store.end)
    slave.close()
    again = stores.open("s", alone=False, segment_bytes=SEGMENT_BYTES)  # all is saved
    while again.store.old.remove_first(NOTHING_NEEDED):
        pass
    assert 0 < again.store.log.start <= again.state.transactions.open_from() < again.store.log.segments[1].start
    master.decide("x", 0, {7: [3, 0, 1]})
    again.take_from(master)
    again.store.lead(2)
    again.publish("x")
    assert again.bodies("t", 0) == WANTED


def test_a_copy_has_what_is_staged(stores: Stores, pair: tuple[OpenStore, OpenStore]) -> None:
    master, _ = pair
    staged_over_segments(master)
    master.store.confirm(master.store.end)
    snapshot = master.store.snapshot()
    with closing(StoreCopy(stores.folder / "copy", snapshot, 0, SEGMENT_BYTES)) as copy:
        copy.put(master.store.entries(0, 1 << 40))
        copy.finish()
    master.close()
    comparison = compare_directories(master.path, stores.folder / "copy")
    assert (comparison.difference, comparison.ahead) == (None, 0)
    copied = stores.open("copy", alone=False, segment_bytes=SEGMENT_BYTES)
    assert rows(copied.state) == rows(master.state)
    copied.store.lead(2)
    copied.publish("x")
    assert copied.bodies("t", 0) == WANTED


def test_a_listing_names_them(store: OpenStore) -> None:
    store.stage("x", 3, "t", 1, numbered_batch(7, 0, b"a", b"b"))
    store.decide("x", 3, {7: [0]})
    store.publish("x")
    store.close()
    lines = [*inspect_directory(store.path, entries=True)]
    assert any("kind=staged" in line and "messages=2" in line and "transaction=x number=3" in line for line in lines)
    assert any("kind=released" in line and "queue=1 min_offset=0 max_offset=2" in line for line in lines)
    assert any("type=transaction-decided name=x number=3 " in line for line in lines)
    assert "transactions: transaction=x number=3 unpublished=0" in lines
    assert check_directory(store.path).messages == 2


def test_entries_of_a_master_are_applied_before_a_segment_goes() -> None:
    """A decision among them lets go of what was staged before it says what is needed."""
    assert ReplicaJob(0, []).keeps_log
