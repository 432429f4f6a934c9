"""Half messages in a real store: one outcome for each number forever, whoever asks and whatever fails between."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from minimq_broker.features.retention.retention import NOTHING_NEEDED
from minimq_broker.features.staged import transactions, uncommitted_half_messages
from minimq_broker.features.staged.staging import HalfOutcome, Staged, StagingLimits, TransactionId
from minimq_common.errors import InvalidArgument, StoreFull, SystemBusy, TransactionEnded
from support.states import rows, rows_from_scratch
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

COMMITTED, ROLLED_BACK, EXPIRED = HalfOutcome
SEGMENT_BYTES = 1 << 16
LARGE = bytes(20_000)


def test_a_commit_publishes_in_the_same_commit_and_touches_no_other_number(store: OpenStore) -> None:
    store.stage("@g", 5, "t", 0, numbered_batch(7, 0, b"a"))
    store.stage("@g", 3, "t", 0, numbered_batch(8, 0, b"other"))
    store.stage("@g", 5, "t", 1, numbered_batch(7, 1, b"b"))
    assert store.bodies("t", 0) == []
    store.grown.clear()
    commits = store.store._writer.figures.commits
    assert store.end_half("@g", 5, COMMITTED, batches=2) is COMMITTED
    assert store.store._writer.figures.commits == commits + 1
    assert (store.bodies("t", 0), store.bodies("t", 1)) == ([b"a"], [b"b"])
    assert set(store.grown) == {store.key("t", 0), store.key("t", 1)}
    table = store.state.transactions
    assert [*table.open_half_transactions()] == [("@g", 3)]
    assert (table.count, table.unpublished, table.endings()) == (1, {}, [])


def test_a_number_belongs_to_one_producer(store: OpenStore) -> None:
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0))
    with pytest.raises(InvalidArgument, match="begun by another producer"):
        store.stage("@g", 1, "t", 0, numbered_batch(8, 0))
    together = [store.submit("t", 0, numbered_batch(pid, 5), TransactionId("@g", 2)) for pid in (7, 8)]
    errors = [type(future.exception(TIMEOUT_S)) for future in together]
    assert errors == [type(None), InvalidArgument]


def test_what_is_staged_and_ended_in_one_commit(store: OpenStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that ends while its batch is written: what comes after the end is rejected, what came before counts."""
    held = store.submit_fact(lambda _: None)
    sent = store.submit("t", 0, numbered_batch(7, 0), TransactionId("@g", 1))
    end = store.submit_end("@g", 1, COMMITTED, 1)
    late = store.submit("t", 0, numbered_batch(7, 1), TransactionId("@g", 1))
    held.result(TIMEOUT_S)
    assert sent.exception(TIMEOUT_S) is None
    assert end.result(TIMEOUT_S).stands is COMMITTED
    assert isinstance(late.exception(TIMEOUT_S), TransactionEnded)
    store.publish("@g")
    assert store.bodies("t", 0) == [b"7/0"]


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


def test_other_transactions_and_expiry_leave_half_messages_alone(store: OpenStore) -> None:
    store.stage("@x", 0, "t", 0, numbered_batch(7, 0))
    store.stage("x", 0, "t", 0, numbered_batch(7, 0))
    store.stage("x", 9, "t", 0, numbered_batch(7, 1))
    store.decide("x", 9, {7: [1]})
    store.publish("x")
    assert store.state.transactions.older(store.clock.now_ms + 1, 10) == ()
    assert [*store.state.transactions.open_half_transactions()] == [("@x", 0)]
    assert store.end_half("@x", 0, COMMITTED) is COMMITTED
    assert store.bodies("t", 0) == [b"7/1", b"7/0"]


def test_a_topic_that_goes_takes_its_half_messages_along(store: OpenStore) -> None:
    store.create_topic("u")
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0))
    store.stage("@g", 1, "u", 0, numbered_batch(7, 1))
    store.stage("@g", 2, "t", 0, numbered_batch(7, 2))
    store.delete_topic("t")
    assert [*store.state.transactions.open_half_transactions()] == [("@g", 1)]
    assert store.end_half("@g", 1, COMMITTED, batches=2) is EXPIRED  # all or none
    assert store.end_half("@g", 2, COMMITTED, batches=1) is EXPIRED
    assert store.state.transactions.open.all == Staged()


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


def test_a_segment_stays_until_its_half_message_is_ended(stores: Stores) -> None:
    store = stores.open(segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", queues=2)
    store.append("t", 1, LARGE, LARGE)
    store.append("t", 1, LARGE, LARGE)
    store.stage("@g", 1, "t", 0, numbered_batch(7, 0, b"kept"))
    for _ in range(4):
        store.append("t", 1, LARGE, LARGE)
    store.close()
    again = stores.open(segment_bytes=SEGMENT_BYTES)
    while again.store.old.remove_first(NOTHING_NEEDED):
        pass
    kept = again.store.log.start
    assert 0 < kept < again.store.log.segments[-1].start
    assert again.end_half("@g", 1, COMMITTED, 1) is COMMITTED
    assert again.bodies("t", 0) == [b"kept"]
    again.close()
    last = stores.open(segment_bytes=SEGMENT_BYTES)
    while last.store.old.remove_first(NOTHING_NEEDED):
        pass
    assert last.store.log.start > kept


# ---- a model ------------------------------------------------------------------------------------------------


class Model:
    """The outcomes of transactions of one producer group, as a dictionary has them."""

    def __init__(self) -> None:
        self.staged: dict[int, list[bytes]] = {}
        self.outcomes: dict[int, HalfOutcome] = {}
        self.published: list[bytes] = []

    def end(self, number: int, wanted: HalfOutcome, batches: int) -> HalfOutcome | None:
        if number in self.outcomes:
            return self.outcomes[number]
        there = self.staged.get(number, [])
        if not there and not batches:
            return None
        outcome = EXPIRED if wanted is COMMITTED and batches and batches != len(there) else wanted
        self.outcomes[number] = outcome
        self.staged.pop(number, None)
        if outcome is COMMITTED:
            self.published += there
        return outcome


class Schedule:
    """Random steps at a master, each compared with the model."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.rng = random.Random(seed)
        self.model = Model()
        self.stores = Stores(folder)
        self.master = self.open()
        self.master.create_topic("t")
        self.slave = self.stores.open("slave", alone=False)
        self.sequence = 0

    def open(self) -> OpenStore:
        return self.stores.open("master", segment_bytes=SEGMENT_BYTES)

    def step(self) -> None:
        names = ("stage", "end", "end_many", "start_anew", "follow")
        getattr(self, self.rng.choices(names, (6, 4, 2, 0.3, 0.5))[0])()
        assert self.master.bodies("t", 0) == self.model.published
        halves = self.master.state.transactions.open_half_transactions()
        assert {number for _, number in halves} == self.model.staged.keys()

    def stage(self) -> None:
        number, self.sequence = self.rng.randrange(40), self.sequence + 1
        body = b"%d/%d" % (number, self.sequence)
        data = numbered_batch(number + 1, self.sequence, body)
        if number in self.model.outcomes:
            with pytest.raises(TransactionEnded):
                self.master.stage("@g", number, "t", 0, data)
        else:
            self.master.stage("@g", number, "t", 0, data)
            self.model.staged.setdefault(number, []).append(body)

    def end(self) -> None:
        number, wanted = self.rng.randrange(40), self.rng.choice((COMMITTED, ROLLED_BACK))
        batches = self.rng.choice((0, len(self.model.staged.get(number, [])), 3))
        expected = self.model.end(number, wanted, batches)
        assert self.master.end_half("@g", number, wanted, batches) is expected

    def end_many(self) -> None:
        """Many in one commit, of which some contradict each other."""
        asked = [(self.rng.randrange(40), self.rng.choice((COMMITTED, ROLLED_BACK))) for _ in range(5)]
        expected = [self.model.end(number, wanted, 0) for number, wanted in asked]
        jobs = [self.master.submit_end("@g", number, wanted) for number, wanted in asked]
        assert [job.result(TIMEOUT_S).stands for job in jobs] == expected

    def start_anew(self) -> None:
        self.master.close()
        self.master = self.open()

    def follow(self) -> None:
        self.slave.take_from(self.master)


@pytest.mark.parametrize("seed", range(8))
def test_random_halves_agree_with_a_model_over_starts_and_at_a_slave(tmp_path: Path, seed: int) -> None:
    schedule = Schedule(tmp_path, seed)
    for _ in range(300):
        schedule.step()
    schedule.follow()
    expected = rows(schedule.master.state)
    assert rows(schedule.slave.state) == expected
    schedule.slave.store.lead(100)
    assert schedule.slave.bodies("t", 0) == schedule.model.published
    schedule.stores.close()
    assert rows_from_scratch(schedule.master.path, tmp_path / "scratch") == expected
