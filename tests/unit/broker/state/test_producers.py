"""Numbered batches are stored once: the table of producers, and the state under any order of events."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from minimq_broker.commit.commit_group import CommitGroup
from minimq_broker.commit.jobs import AppendJob, AppendStatus
from minimq_broker.log.entry import effect
from minimq_broker.state.facts import Fact, Topic, TopicDeleted, TopicSet
from minimq_broker.state.producers import (
    MAX_BATCHES,
    BatchLocation,
    PendingBatches,
    ProducerKey,
    ProducerTable,
    Repeated,
)
from minimq_broker.state.state import BatchApplied, QueueEnd, QueueKey, State
from minimq_broker.state.state_rows import changed_rows, load_row
from minimq_common.batch import header as batch
from minimq_common.errors import MinimqError, StaleSequence
from support.stores import numbered_batch


def place(offset: int, topic_id: int = 1) -> BatchLocation:
    return BatchLocation(topic_id, 0, offset, 1000 + offset)


def filled(table: ProducerTable, *numbers: tuple[int, int, int]) -> ProducerTable:
    """Add batches (producer, sequence, settled before) whose offset is their sequence number."""
    for position, (producer_id, sequence, settled_before) in enumerate(numbers):
        table.add(key(producer_id), sequence, settled_before, place(sequence), position)
    return table


def key(producer_id: int, topic_id: int = 1, user: int = 0) -> ProducerKey:
    return producer_id, topic_id, user


def keys(*producer_ids: int) -> list[ProducerKey]:
    return [key(producer_id) for producer_id in producer_ids]


def remembered(table: ProducerTable, producer_id: int, topic_id: int = 1) -> list[int]:
    return [sequence for sequence in range(100) if table.find(key(producer_id, topic_id), sequence)]


# ---- the table ----------------------------------------------------------------------------------


def test_what_is_settled_is_forgotten_and_the_rest_is_found() -> None:
    table = filled(ProducerTable(), (7, 0, 0), (7, 1, 0), (7, 4, 0), (7, 3, 0), (8, 1, 0), (7, 5, 3))

    assert remembered(table, 7) == [3, 4, 5]
    assert table.find(key(7), 4) == place(4)
    assert {each: state.settled for each, state in table.states.items()} == {key(7): 3, key(8): 0}
    assert remembered(table, 8) == [1]


def test_what_is_settled_never_grows_less() -> None:
    table = filled(ProducerTable(), (7, 9, 8), (7, 8, 0))
    assert table.states[key(7)].settled == 8
    assert remembered(table, 7) == [8, 9]


def test_beyond_the_bound_the_oldest_numbers_count_as_settled() -> None:
    table = filled(ProducerTable(max_batches=3), *((7, sequence, 0) for sequence in (5, 1, 9, 7)))
    assert remembered(table, 7) == [5, 7, 9]
    assert table.states[key(7)].settled == 5
    filled(table, (7, 6, 0))
    assert remembered(table, 7) == [6, 7, 9]


def test_the_producer_that_wrote_least_recently_is_forgotten() -> None:
    table = filled(ProducerTable(max_producers=2), (1, 0, 0), (2, 0, 0), (1, 1, 0))
    assert table.add(key(3), 0, 0, place(0), 3) == keys(2)
    assert sorted(table) == keys(1, 3)
    assert table.states.get(key(2)) is None


def test_the_sum_of_all_batches_is_bounded() -> None:
    table = ProducerTable(max_batches=4, max_total=6)
    filled(table, *((1, sequence, 0) for sequence in range(3)), *((2, sequence, 0) for sequence in range(3)))
    assert table.add(key(3), 0, 0, place(0), 6) == keys(1)
    filled(table, (2, 3, 3), *((3, sequence, 0) for sequence in range(1, 4)))
    assert (remembered(table, 2), remembered(table, 3)) == ([3], [0, 1, 2, 3])
    assert sorted(table.forget_topic(1)) == keys(2, 3)
    filled(table, *((producer_id, 50, 0) for producer_id in range(10, 16)))
    assert sorted(table) == keys(*range(10, 16))


def test_rows_bring_back_the_same_table_in_any_order() -> None:
    table = filled(ProducerTable(max_producers=3), (5, 1, 0), (3, 2, 1), (9, 3, 0), (5, 4, 2))
    again = ProducerTable(max_producers=3)
    for each in sorted(table):
        again.load(each, msgspec.msgpack.decode(msgspec.msgpack.encode(table.states.get(each))))

    assert dict(again.states) == dict(table.states)
    for producer_id in (20, 21, 22):
        new = key(producer_id)
        assert again.add(new, 0, 0, place(0), 9) == table.add(new, 0, 0, place(0), 9)


def test_a_topic_takes_its_producers_along_and_leaves_those_of_others() -> None:
    table = filled(ProducerTable(), (7, 1, 0), (8, 1, 0))
    table.add(key(7, 2), 2, 1, place(2, topic_id=2), 5)

    assert table.forget_topic(2) == [key(7, 2)]
    assert (remembered(table, 7), remembered(table, 7, 2)) == ([1], [])
    assert table.forget_topic(2) == []


@pytest.mark.parametrize("other", [key(7, topic_id=2), key(7, user=5)])
def test_each_topic_and_user_has_its_own_numbers_of_a_producer_id(other: ProducerKey) -> None:
    table = filled(ProducerTable(), (7, 1, 0))
    table.add(other, 900, 900, place(0, other[1]), 5)
    pending = PendingBatches(table)
    pending.add(other, 2, 2, place(1, other[1]))
    assert pending.find(key(7), 2) is None
    assert pending.find(key(7), 1) == Repeated(place(1), applied=True)
    with pytest.raises(StaleSequence):
        pending.find(other, 3)


def test_numbers_of_64_bits() -> None:
    large = (1 << 64) - 1
    table = ProducerTable()
    table.add(key(large), large, large - 5, place(0), 1)
    again = ProducerTable()
    again.load(key(large), msgspec.msgpack.decode(msgspec.msgpack.encode(table.states.get(key(large)))))
    assert again.find(key(large), large) == place(0)
    assert again.states[key(large)].settled == large - 5


def test_what_is_pending_lies_on_top_of_the_table() -> None:
    table = filled(ProducerTable(), (7, 3, 2))
    pending = PendingBatches(table)
    assert pending.find(key(7), 3) == Repeated(place(3), applied=True)
    with pytest.raises(StaleSequence, match=r"batch 1 of producer 0000000000000007 .* all batches below 2 are settled"):
        pending.find(key(7), 1)
    assert pending.find(key(7), 6) is None
    pending.add(key(7), 9, 6, place(9))

    assert pending.find(key(7), 9) == Repeated(place(9), applied=False)
    assert pending.find(key(7), 3) == Repeated(place(3), applied=True)
    assert pending.find(key(7), 6) is None
    with pytest.raises(StaleSequence, match="all batches below 6"):
        pending.find(key(7), 5)
    assert PendingBatches(table).find(key(7), 9) is None


# ---- rows of the checkpoint ---------------------------------------------------------------------


def apply_batches(state: State, producer_id: int, sequences: range, window: int) -> None:
    queue = QueueKey(1, 0)
    for sequence in sequences:
        end = QueueEnd(sequence + 1, 1_700_000_000_000)
        at = BatchLocation(*queue, sequence, end.stored_ms)
        state.apply(BatchApplied(queue, end, at, producer_id, sequence, max(sequence - window, 0)), sequence + 1)


def test_a_checkpoint_costs_what_is_remembered_and_not_what_was_sent() -> None:
    state = State()
    costs = []
    for number in range(3):
        for producer_id in (1, 2):
            apply_batches(state, producer_id, range(5000 * number, 5000 * (number + 1)), window=8)
        costs.append({row: len(msgspec.msgpack.encode(value)) for row, value in changed_rows(state)})
        state.saved()
    assert costs[0].keys() == {("end", 1, 0), ("producer", 1, 1, 0), ("producer", 2, 1, 0)}
    assert costs[2].keys() == costs[0].keys()
    assert max(costs[2].values()) < 400


def test_the_largest_row_is_bounded() -> None:
    state = State()
    apply_batches(state, 1, range(1 << 40, (1 << 40) + MAX_BATCHES + 100), window=1 << 20)
    assert len(msgspec.msgpack.encode(dict(changed_rows(state))["producer", 1, 1, 0])) < 3_000_000


def test_a_producer_that_is_forgotten_loses_its_row() -> None:
    state = State()
    state.producers = ProducerTable(max_producers=2)
    for producer_id in (1, 2, 3):
        apply_batches(state, producer_id, range(1), window=0)
    changes = dict(changed_rows(state))
    assert changes["producer", 1, 1, 0] is None
    assert changes["producer", 2, 1, 0] is not None


# ---- any order of events ------------------------------------------------------------------------

MAX_PRODUCERS = 3
KEPT = 4


def new_state() -> State:
    state = State()
    state.producers = ProducerTable(MAX_PRODUCERS, KEPT)
    return state


def describe(state: State) -> dict[str, Any]:
    return {
        "topics": state.topics.copy(),
        "ends": state.ends.copy(),
        "producers": {number: msgspec.to_builtins(state.producers.states.get(number)) for number in state.producers},
    }


class Send(msgspec.Struct, frozen=True):
    topic: str
    queue_id: int
    producer_id: int
    sequence: int
    unsettled: int
    user: int = 0


class Remembered:
    """The batches of producers that a broker must remember, in the plainest way."""

    def __init__(self) -> None:
        #: All that was stored in topics that are there, of producers that are not forgotten.
        self.stored: dict[tuple[ProducerKey, int], tuple[int, int, int]] = {}
        self.settled: dict[ProducerKey, int] = {}
        self.recent: list[ProducerKey] = []

    def kept(self, producer: ProducerKey) -> list[int]:
        every = sorted(sequence for each, sequence in self.stored if each == producer)
        return [sequence for sequence in every if sequence >= self.settled.get(producer, 0)]

    def add(self, send: Send, at: tuple[int, int, int]) -> None:
        producer = key(send.producer_id, at[0], send.user)
        self.stored[producer, send.sequence] = at
        self.recent = [each for each in self.recent if each != producer] + [producer]
        settled = max(self.settled.get(producer, 0), send.sequence - send.unsettled)
        self.settled[producer] = settled
        kept = self.kept(producer)
        if len(kept) > KEPT:
            self.settled[producer] = kept[-KEPT]
        if len(self.recent) > MAX_PRODUCERS:
            self.forget(self.recent[0])

    def forget(self, producer: ProducerKey) -> None:
        self.recent.remove(producer)
        del self.settled[producer]
        self.stored = {number: at for number, at in self.stored.items() if number[0] != producer}

    def forget_topic(self, topic_id: int) -> None:
        for producer in [each for each in self.recent if each[1] == topic_id]:
            self.forget(producer)


class AppendMachine(RuleBasedStateMachine):
    """Sends, repeats, failed groups, topics that come and go, checkpoints and crashes in any order."""

    sends = st.builds(
        Send,
        topic=st.sampled_from("tu"),
        queue_id=st.integers(0, 2),  # there is no queue 2
        producer_id=st.integers(0, 2),
        sequence=st.integers(0, 12),
        unsettled=st.integers(0, 7),
        user=st.sampled_from((0, 5)),
    )

    def __init__(self) -> None:
        super().__init__()
        self.state = new_state()
        self.log: list[tuple[int, bytes]] = []
        self.rows: dict[bytes, bytes] = {}
        self.saved = 0
        #: The state at each position of the log.
        self.states: dict[int, dict[str, Any]] = {0: describe(self.state)}
        self.model = Remembered()
        self.now_ms = 1000

    # ---- what the writer does -----------------------------------------------------------------

    def new_group(self) -> CommitGroup:
        self.now_ms += 1
        return CommitGroup(self.state, self.state.position, self.now_ms)

    def commit(self, group: CommitGroup) -> None:
        self.log += group.entries
        for change, position, _ in group.effects:
            self.state.apply(change, position)
            self.states[position] = describe(self.state)

    def record(self, fact: Fact) -> None:
        group = self.new_group()
        group.add(fact)
        self.commit(group)

    def recovered(self, end: int, *, from_checkpoint: bool = True) -> State:
        """Return the state that a start finds when the log ends at a position."""
        state = new_state()
        if from_checkpoint:
            for key, value in sorted(self.rows.items()):
                load_row(state, msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
            state.position = self.saved
        for position, entry in self.log:
            if state.position <= position < end:
                state.apply(effect(memoryview(entry), position), position + len(entry))
        return state

    # ---- events -------------------------------------------------------------------------------

    @initialize()
    def two_topics(self) -> None:
        self.create("t")
        self.create("u")

    @rule(sends=st.lists(sends, min_size=1, max_size=8), fails=st.booleans())
    def send(self, sends: list[Send], *, fails: bool) -> None:
        group = self.new_group()
        jobs = [self.job(send) for send in sends]
        before = {producer: self.model.kept(producer) for producer in self.model.recent}
        for job in jobs:
            try:
                group.add_batch(job)
            except MinimqError as error:
                job.error = error
        assert all(job.status is AppendStatus.ALREADY_STORED for job in group.stored)
        if fails:
            return
        new: dict[Send, AppendJob] = {}
        for send, job in zip(sends, jobs, strict=True):
            self.compare(send, job, new, known=send.sequence in before.get(self.producer_of(send), []))
        for send, job in new.items():  # only now: what is forgotten for them is known until they are written
            self.model.add(send, (self.state.topic(send.topic).topic_id, job.stored_queue_id, job.base_offset))
        self.commit(group)

    def job(self, send: Send) -> AppendJob:
        data = numbered_batch(send.producer_id, send.sequence, unsettled=send.unsettled)
        return AppendJob(send.topic, send.queue_id, data, batch.read_header(data), user=send.user)

    def producer_of(self, send: Send) -> ProducerKey:
        topic = self.state.topics.get(send.topic)
        return key(send.producer_id, -1 if topic is None else topic.topic_id, send.user)

    def compare(self, send: Send, job: AppendJob, new: dict[Send, AppendJob], *, known: bool) -> None:
        """Check the answer to one batch of a group, of which some are new and written together with it."""
        topic = self.state.topics.get(send.topic)
        producer = self.producer_of(send)
        former = self.model.stored.get((producer, send.sequence))
        settled = self.model.settled.get(producer, 0)
        for other, its_job in new.items():
            if self.producer_of(other) == producer:
                settled = max(settled, other.sequence - other.unsettled)
                if other.sequence == send.sequence:
                    former = producer[1], its_job.stored_queue_id, its_job.base_offset
        if send.producer_id == 0 or topic is None:
            assert not isinstance(job.error, StaleSequence)
            assert job.status is AppendStatus.OK
        elif isinstance(job.error, StaleSequence):
            assert not known
            assert send.sequence < settled
        elif job.error is None and job.status is AppendStatus.ALREADY_STORED:
            assert former == (topic.topic_id, job.stored_queue_id, job.base_offset)
        else:
            assert not known
            if job.error is None:
                assert former is None, "stored twice"
                new[send] = job

    def create(self, name: str) -> None:
        self.record(TopicSet(Topic(name, self.state.position, 2, 2)))

    @rule(name=st.sampled_from("tu"))
    def delete_or_create(self, name: str) -> None:
        topic = self.state.topics.get(name)
        if topic is None:
            self.create(name)
        else:
            self.record(TopicDeleted(name))
            self.model.forget_topic(topic.topic_id)

    @rule()
    def save(self) -> None:
        for row, value in changed_rows(self.state):
            key = msgspec.msgpack.encode(row)
            if value is None:
                self.rows.pop(key, None)
            else:
                self.rows[key] = msgspec.msgpack.encode(value)
        self.saved = self.state.position
        self.state.saved()
        assert sum(b"producer" in key for key in self.rows) == len(self.model.recent) <= MAX_PRODUCERS

    @rule()
    def crash(self) -> None:
        self.state = self.recovered(self.state.position)

    @precondition(lambda self: len(self.states) > 3)
    @rule(data=st.data())
    def any_crash_point_recovers_what_was_there(self, data: st.DataObject) -> None:
        end = data.draw(st.sampled_from([position for position in self.states if position >= self.saved]))
        assert describe(self.recovered(end)) == self.states[end]

    def teardown(self) -> None:
        end = self.state.position
        for state in (self.recovered(end), self.recovered(end, from_checkpoint=False)):
            assert describe(state) == self.states[end]
            assert state.position == end


TestAppendMachine = AppendMachine.TestCase
TestAppendMachine.settings = settings(max_examples=100, stateful_step_count=25, deadline=None)
