"""Numbered batches are stored once: the table of producers, and its bounds."""

from __future__ import annotations

import msgspec
import pytest

from minimq_broker.state.producers import MAX_BATCHES, BatchLocation, PendingBatches, ProducerKey, ProducerTable
from minimq_broker.state.state import BatchApplied, QueueEnd, QueueKey, State
from minimq_broker.state.state_rows import changed_rows
from minimq_common.errors import StaleSequence


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


@pytest.mark.parametrize("other", [key(7, topic_id=2), key(7, user=5)])
def test_each_topic_and_user_has_its_own_numbers_of_a_producer_id(other: ProducerKey) -> None:
    table = filled(ProducerTable(), (7, 1, 0))
    table.add(other, 900, 900, place(0, other[1]), 5)
    pending = PendingBatches(table)
    pending.add(other, 2, 2, place(1, other[1]))
    assert pending.find(key(7), 2) is None
    assert pending.find(key(7), 1) == place(1)
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
