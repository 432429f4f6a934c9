"""The table of transactions: bounds, order, rows, and that whoever is told the same holds the same."""

from __future__ import annotations

import sys
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_broker.features.delayed.delays import DueKey
from minimq_broker.features.retention.retention import NOTHING_NEEDED
from minimq_broker.features.staged.staging import (
    BatchStaged,
    Staged,
    StagedEntry,
    StagingLimits,
    TransactionId,
    check_room,
)
from minimq_broker.features.staged.transactions import TransactionTable
from minimq_broker.state.facts import (
    Fact,
    PublicationSkipped,
    StagedSequences,
    TopicDeleted,
    TopicSet,
    TransactionDecided,
    TransactionsExpired,
)
from minimq_broker.state.facts import Topic as TopicFact
from minimq_broker.state.producers import BatchLocation
from minimq_broker.state.state import BatchApplied, Effect, QueueEnd, QueueKey, State
from minimq_broker.state.state_rows import changed_rows, load_row
from minimq_common.errors import SystemBusy, TransactionEnded
from minimq_common.names import half_name
from support.states import transaction_rows

SIZE = 10


def staged(position: int, name: str = "x", number: int = 0, producer_id: int = 7, topic_id: int = 1) -> BatchStaged:
    """A batch at a position, which is its sequence number as well."""
    batch = StagedEntry(position, SIZE, topic_id, 0, 1_000 + position, producer_id, position)
    return BatchStaged(TransactionId(name, number), producer_id, position, batch)


def decided(name: str, number: int, *parts: tuple[int, tuple[int, ...]], decision: bytes = b"d") -> TransactionDecided:
    return TransactionDecided(name, number, decision, tuple(StagedSequences(*part) for part in parts))


def table(**bounds: int) -> TransactionTable:
    return TransactionTable(set(), **bounds)


def room(of: TransactionTable, limits: StagingLimits, name: str, producer_id: int = 7, batches: int = 1) -> None:
    """Ask whether there is room for a batch behind others of the same part."""
    check_room(limits, (of.open,), name, producer_id, Staged(batches, batches * SIZE, 1))


@pytest.mark.parametrize("limits", [StagingLimits(batches=3), StagingLimits(size=3 * SIZE), StagingLimits(parts=3)])
def test_what_is_staged_is_kept_and_more_is_rejected(limits: StagingLimits) -> None:
    of = table()
    for position, name in enumerate("xyz"):
        room(of, limits, name, position)
        of.apply(staged(position, name, producer_id=position), position)
    with pytest.raises(SystemBusy, match="no room for more"):
        room(of, limits, "a", 9)
    of.apply(decided("x", 0, (0, (0,))), 5)
    room(of, limits, "a", 9)


def test_what_one_name_or_one_producer_has_leaves_room_for_all_others() -> None:
    """Whoever takes all that it may leaves as much; so others find room behind any number of them."""
    of, limits = table(), StagingLimits(batches=64)
    position = 0
    taken = []
    for party in range(4):
        before = position
        for _ in range(100):
            try:
                room(of, limits, f"x{party}", party)
            except SystemBusy:
                break
            of.apply(staged(position, f"x{party}", producer_id=party), position)
            position += 1
        taken.append(position - before)
    assert taken == [32, 16, 8, 4]
    with pytest.raises(SystemBusy, match="transaction name 'x3' has 4 staged batches in open transactions"):
        room(of, limits, "x3", 9)
    with pytest.raises(SystemBusy, match="producer 0000000000000000 has 32 staged batches"):
        room(of, limits, "new", 0)
    room(of, limits, "new", 9)
    of.apply(decided("x0", 0), 99)
    room(of, limits, "x1", 1, batches=12)


def test_one_producer_with_a_name_for_each_batch_leaves_room_for_all_others() -> None:
    of, limits = table(), StagingLimits(parts=10)
    for position in range(5):
        room(of, limits, f"x{position}")
        of.apply(staged(position, f"x{position}"), position)
    with pytest.raises(SystemBusy, match="producer 0000000000000007 has 5 open parts"):
        room(of, limits, "x5")
    room(of, limits, "x5", 8)


def test_no_thread_sees_a_half_message_as_older_than_it_is() -> None:
    """One that did would have it expire at once."""
    of, began = TransactionTable(set()), set[int]()

    def look(*_: object) -> Any:
        began.update(half.stage.began_ms for half in of.open_half_transactions().values())
        return look

    former = sys.gettrace()
    sys.settrace(look)
    try:
        of.apply(staged(50, half_name("shop")), 50)
    finally:
        sys.settrace(former)
    assert began == {1_050}


def test_what_waits_to_be_published_is_in_no_bound() -> None:
    of, limits = table(max_names=1), StagingLimits(batches=2)
    for position in range(2):
        of.apply(staged(position), position)
    of.apply(decided("x", 0, (7, (1, 0))), 5)
    room(of, limits, "y")
    for position in range(6, 8):
        of.apply(staged(position, "y"), position)
    of.apply(decided("y", 0, (7, (7, 6))), 8)
    assert [batch.position for batch in of.next_to_publish("x", 1 << 20, 100)] == [1, 0]
    assert [batch.position for batch in of.next_to_publish("y", SIZE, 100)] == [7]
    assert of.unpublished == {"x": 0, "y": 6}


def test_names_that_ended_least_recently_are_forgotten() -> None:
    of = table(max_names=2)
    for at, name in enumerate(("x", "y", "x", "z")):
        of.apply(decided(name, at), at)
    assert of.endings() == [("x", 2, 0), ("z", 3, 0)]
    of.check_open(TransactionId("y", 0), 1)
    with pytest.raises(TransactionEnded):
        of.check_open(TransactionId("x", 2), 1)


def test_decisions_are_bounded_by_their_size() -> None:
    of = table(max_decision_bytes=100)
    for number in range(5):  # a later one of the same name takes the place of the one before
        of.apply(decided("x", number, decision=bytes(60)), number)
    of.apply(decided("y", 0, decision=bytes(40)), 10)
    assert [name for name, *_ in of.endings()] == ["x", "y"]
    of.apply(decided("z", 0, decision=bytes(1)), 11)
    assert [name for name, *_ in of.endings()] == ["y", "z"]
    of.apply(decided("z", 1, decision=bytes(1000)), 12)
    assert [name for name, *_ in of.endings()] == ["z"]


def test_what_is_missing_of_a_decision() -> None:
    of = table()
    for position in range(3):
        of.apply(staged(position), position)
    wanted = decided("x", 0, (7, (0, 1, 2, 3)), (8, (0,)))
    assert of.missing(wanted, 0) == 2
    assert of.missing(wanted, 1) == 3
    assert of.missing(decided("x", 1, (7, (0,))), 0) == 1


def test_what_is_published_is_needed_until_it_is_saved_whatever_is_decided_meanwhile() -> None:
    """A start goes on from what was saved: there it is still to be published."""
    of = table()
    for position, number in ((3, 0), (5, 0), (14, 1)):
        of.apply(staged(position, number=number), position)
    of.apply(decided("x", 0, (7, (3, 5))), 20)
    of.publish(3, 22)
    of.apply(decided("x", 1, (7, (14,))), 23)
    assert of.needed_from == 3
    of.publish(5, 24)
    of.publish(14, 25)
    of.release(25)
    assert of.needed_from == 3
    of.release(26)
    assert of.needed_from == NOTHING_NEEDED


def test_what_is_skipped_is_needed_until_that_is_saved() -> None:
    of = table()
    of.apply(staged(3), 3)
    of.apply(decided("x", 0, (7, (3,))), 10)
    of.apply(PublicationSkipped("x", 0, 1), 11)
    of.release(11)
    assert of.needed_from == 3
    of.release(12)
    assert of.needed_from == NOTHING_NEEDED


def test_what_a_deleted_topic_takes_along_is_needed_until_that_is_saved() -> None:
    of = table()
    of.apply(staged(3), 3)
    of.apply(staged(5, topic_id=2), 5)
    of.apply(decided("x", 0, (7, (3, 5))), 10)
    of.forget_topic(2, 11)
    of.forget_topic(1, 12)
    assert of.unpublished == {}
    of.release(12)
    assert of.needed_from == 3
    of.release(13)
    assert of.needed_from == NOTHING_NEEDED


def loaded(of: TransactionTable, **bounds: int) -> TransactionTable:
    """Return one with the endings of another, which come in the order of names, as from a checkpoint."""
    again = table(**bounds)
    for name, *_ in of.endings():
        again.load_ending(msgspec.to_builtins(of.ending(name)), name)
    return again


def test_names_are_forgotten_in_their_order_after_a_start() -> None:
    of = table()
    for at, name in enumerate("zyxw"):
        of.apply(decided(name, at), at)
    again = loaded(of, max_names=4)
    again.apply(decided("y", 7), 7)
    again.apply(decided("v", 8), 8)
    assert [name for name, *_ in again.endings()] == ["v", "w", "x", "y"]
    again.apply(decided("u", 9), 9)
    assert [name for name, *_ in again.endings()] == ["u", "v", "w", "y"]
    again.apply(decided("t", 10), 10)
    assert [name for name, *_ in again.endings()] == ["t", "u", "v", "y"]


def test_decisions_are_bounded_by_their_size_after_a_start() -> None:
    of = table()
    for at, name in enumerate("yx"):
        of.apply(decided(name, 0, decision=bytes(40)), at)
    again = loaded(of, max_decision_bytes=100)
    again.apply(decided("z", 0, decision=bytes(20)), 2)
    assert [name for name, *_ in again.endings()] == ["x", "y", "z"]
    again.apply(decided("z", 1, decision=bytes(21)), 3)
    assert [name for name, *_ in again.endings()] == ["x", "z"]


# ---- Whatever happens --------------------------------------------------------------------------------

_numbers = st.integers(0, 2)
_names = st.sampled_from("xyz")
_producers = st.sampled_from([7, 8])
_sequences = st.integers(0, 30)
_actions = st.one_of(
    st.tuples(st.just("stage"), _names, _numbers, _producers, _sequences, st.integers(0, 1)),
    st.tuples(st.just("stage"), _names, _numbers, _producers, _sequences, st.integers(0, 1)),
    st.tuples(
        st.just("decide"),
        _names,
        _numbers,
        st.dictionaries(_producers, st.lists(_sequences, max_size=12, unique=True), max_size=2),
    ),
    st.tuples(st.just("publish"), _names, st.integers(1, 4)),
    st.tuples(st.just("skip"), _names, st.integers(1, 3)),
    st.tuples(st.just("expire"), st.lists(st.tuples(_names, _numbers), max_size=2)),
    st.tuples(st.just("delete"), st.integers(0, 1)),
    st.tuples(st.just("save")),
    st.tuples(st.just("load")),
)


class Brokers:
    """A state that lives on, one that is told the same, and one that is loaded from its rows again and again."""

    def __init__(self) -> None:
        self.states = [self.new() for _ in range(3)]
        self.saved: dict[bytes, bytes] = {}
        self.ended: dict[str, int] = {}
        self.position = 0
        for topic in range(2):
            self.apply(TopicSet(TopicFact(f"t{topic}", topic + 1, 1, 1)))

    @staticmethod
    def new() -> State:
        state = State()
        state.transactions = TransactionTable(state.changed, max_names=2, max_decision_bytes=20)
        return state

    def apply(self, effect: Effect) -> None:
        self.position += SIZE
        for state in self.states:
            state.apply(effect, self.position)

    def save(self) -> None:
        state = self.states[2]
        for row, value in changed_rows(state):
            key = msgspec.msgpack.encode(row)
            if value is None:
                self.saved.pop(key, None)
            else:
                self.saved[key] = msgspec.msgpack.encode(value)
        state.saved()

    def load(self) -> None:
        self.save()
        state = self.new()
        for key, value in sorted(self.saved.items(), reverse=True):
            load_row(state, msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
        state.position = self.position
        self.states[2] = state

    def act(self, kind: str, *what: Any) -> None:
        match kind, *what:
            case "stage", name, number, producer_id, sequence, topic:
                if number > self.ended.get(name, -1):
                    batch = StagedEntry(self.position, SIZE, topic + 1, 0, self.position, producer_id, sequence)
                    self.apply(BatchStaged(TransactionId(name, number), producer_id, sequence, batch))
            case "decide", name, number, parts:
                if number > self.ended.get(name, -1):
                    self.ended[name] = number
                    self.apply(decided(name, number, *((key, tuple(value)) for key, value in parts.items())))
            case "publish", name, count:
                for batch in self.states[0].transactions.next_to_publish(name, count * SIZE, count):
                    place, key = BatchLocation(1, 0, 0, 0), DueKey(0, batch.position)
                    self.apply(BatchApplied(QueueKey(1, 0), QueueEnd(1, 1), place, released=key))
            case "delete", topic:
                fact: Fact = TopicDeleted(f"t{topic}")
                self.apply(fact)
                self.apply(TopicSet(TopicFact(f"t{topic}", topic + 1, 1, 1)))
            case "expire", transactions:
                self.apply(TransactionsExpired(tuple(transactions)))
            case _:
                getattr(self, kind)(*what)

    def skip(self, name: str, count: int) -> None:
        self.apply(PublicationSkipped(name, 0, count))

    def check(self) -> None:
        expected = transaction_rows(self.states[0].transactions)
        for state in self.states[1:]:
            assert transaction_rows(state.transactions) == expected
        of = self.states[0].transactions
        stages = [of.stage_row(*key) for key in of]
        open_batches = [batch for stage in stages if stage for batch in stage.batches.values()]
        waiting = [batch for name in of.unpublished for batch in of.next_to_publish(name, 1 << 40, 100)]
        assert len(open_batches) <= 12
        assert of.count == len(open_batches) + len(waiting)
        sizes = sum(batch.size for batch in open_batches)
        assert of.open.all == Staged(len(open_batches), sizes, len(stages))
        for parties in (set("xyz"), {7, 8}):
            assert sum(of.open.parties[party].batches for party in parties if party in of.open.parties) == len(
                open_batches
            )
        assert sum(of.of_name(name)[0] for name in "xyz") == of.count
        assert len({batch.position for batch in open_batches + waiting}) == of.count
        assert all(of.needed_from <= batch.position for batch in waiting)
        assert all(key.number > self.ended.get(key.name, -1) for key in of)
        kept = {name for name, *_ in of.endings()}
        assert set(of.unpublished) <= kept
        assert len(kept) <= max(2, 1 + len(of.unpublished))


@given(st.lists(_actions, max_size=60))
def test_whoever_is_told_the_same_holds_the_same(actions: list[tuple[Any, ...]]) -> None:
    brokers = Brokers()
    for action in actions:
        brokers.act(*action)
        brokers.check()
