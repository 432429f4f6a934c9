"""Half messages in a real store: one outcome for each number forever, whoever asks and whatever fails between."""

from __future__ import annotations

from pathlib import Path

import pytest

from minimq_broker.features.staged import transactions, uncommitted_half_messages
from minimq_broker.features.staged.staging import HalfOutcome, StagingLimits, TransactionId
from minimq_common.errors import InvalidArgument, StoreFull, SystemBusy
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

COMMITTED, ROLLED_BACK, EXPIRED = HalfOutcome
SEGMENT_BYTES = 1 << 16
LARGE = bytes(20_000)


def test_a_number_belongs_to_one_producer(store: OpenStore) -> None:
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0))
    with pytest.raises(InvalidArgument, match="begun by another producer"):
        store.stage("@g", 1, "t", 0, numbered_batch(8, 0))
    together = [store.submit("t", 0, numbered_batch(pid, 5), TransactionId("@g", 2)) for pid in (7, 8)]
    errors = [type(future.exception(TIMEOUT_S)) for future in together]
    assert errors == [type(None), InvalidArgument]


def test_what_is_too_much_for_one_commit_follows(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uncommitted_half_messages, "MAX_PUBLISHED", 2)
    for sequence in range(3):
        store.stage("@g", 1, "t", 0, numbered_batch(7, sequence))
    store.stage("@g", 2, "t", 0, numbered_batch(7, 3))
    jobs = [store.submit_end("@g", number, COMMITTED) for number in (1, 2)]
    assert all(job.result(TIMEOUT_S).leaves_some for job in jobs)
    store.stage("@g", 3, "t", 0, numbered_batch(7, 4))
    assert store.end_half("@g", 3, COMMITTED) is COMMITTED  # behind those that wait
    assert store.bodies("t", 0) == []
    assert store.publish("@g") == [5]
    assert store.bodies("t", 0) == [b"7/%d" % sequence for sequence in range(5)]


def test_a_full_disk_delays_what_is_committed(store: OpenStore) -> None:
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0))
    store.store._writer.rejection = lambda: StoreFull("the disk is nearly full")
    assert store.end_half("@g", 1, COMMITTED) is COMMITTED
    assert store.bodies("t", 0) == []
    store.store._writer.rejection = lambda: None
    assert store.publish("@g") == [1]
    assert store.bodies("t", 0) == [b"7/0"]


def test_they_share_the_room_with_all_that_is_staged(store: OpenStore) -> None:
    store.store._writer.staging = StagingLimits(batches=4)
    for number in range(2):
        store.stage("@g", number, "t", 0, numbered_batch(7, number))
    with pytest.raises(SystemBusy):
        store.stage("@g", 2, "t", 0, numbered_batch(7, 2))
    store.end_half("@g", 0, ROLLED_BACK)
    store.stage("@g", 2, "t", 0, numbered_batch(7, 2))


def test_the_latest_outcomes_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transactions.HalfOutcomes.__init__, "__defaults__", (5,))
    stores = Stores(tmp_path)
    store = stores.open()
    store.create_topic("t")
    for number in range(20):
        store.end_half("@g", number, ROLLED_BACK, batches=1)
    known = [number for number in range(20) if store.end_half("@g", number, COMMITTED) is ROLLED_BACK]
    assert known == [*range(15, 20)]
    store.close()
    again = stores.open()
    assert [number for number in range(20) if again.end_half("@g", number, COMMITTED) is ROLLED_BACK] == known
    again.end_half("@g", 20, ROLLED_BACK, batches=1)  # the oldest goes, also after a start
    assert again.end_half("@g", 15, COMMITTED) is None
    stores.close()


# ---- a model ------------------------------------------------------------------------------------------------
