"""The table of transactions: bounds, order, rows, and that whoever is told the same holds the same."""

from __future__ import annotations

import pytest

from minimq_broker.features.staged.facts import StagedSequences, TransactionDecided
from minimq_broker.features.staged.life_cycles import Transactions
from minimq_broker.features.staged.staging import (
    Staged,
    StagedCount,
    StagedEntry,
    StagingLimits,
    TransactionId,
    check_room,
)
from minimq_common.errors import SystemBusy, TransactionEnded

SIZE = 10


def stage(of: Transactions, position: int, name: str = "x", producer_id: int = 7) -> None:
    """Stage a batch at a position, which is its sequence number as well."""
    of.stage(TransactionId(name, 0), StagedEntry(position, SIZE, 1, 0, 1_000 + position, producer_id, position))


def decided(name: str, number: int, *parts: tuple[int, tuple[int, ...]], decision: bytes = b"d") -> TransactionDecided:
    return TransactionDecided(name, number, decision, tuple(StagedSequences(*part) for part in parts))


def table(**bounds: int) -> Transactions:
    return Transactions(set(), StagedCount(), (), **bounds)


def room(of: Transactions, limits: StagingLimits, name: str, producer_id: int = 7, batches: int = 1) -> None:
    """Ask whether there is room for a batch behind others of the same part."""
    check_room(limits, (of.room,), name, producer_id, Staged(batches, batches * SIZE, 1))


@pytest.mark.parametrize("limits", [StagingLimits(batches=3), StagingLimits(size=3 * SIZE), StagingLimits(parts=3)])
def test_what_is_staged_is_kept_and_more_is_rejected(limits: StagingLimits) -> None:
    of = table()
    for position, name in enumerate("xyz"):
        room(of, limits, name, position)
        stage(of, position, name, position)
    with pytest.raises(SystemBusy, match="no room for more"):
        room(of, limits, "a", 9)
    of.decide(decided("x", 0, (0, (0,))), 5)
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
            stage(of, position, f"x{party}", party)
            position += 1
        taken.append(position - before)
    assert taken == [32, 16, 8, 4]
    with pytest.raises(SystemBusy, match="transaction name 'x3' has 4 staged batches in open transactions"):
        room(of, limits, "x3", 9)
    with pytest.raises(SystemBusy, match="producer 0000000000000000 has 32 staged batches"):
        room(of, limits, "new", 0)
    room(of, limits, "new", 9)
    of.decide(decided("x0", 0), 99)
    room(of, limits, "x1", 1, batches=12)


def test_one_producer_with_a_name_for_each_batch_leaves_room_for_all_others() -> None:
    of, limits = table(), StagingLimits(parts=10)
    for position in range(5):
        room(of, limits, f"x{position}")
        stage(of, position, f"x{position}")
    with pytest.raises(SystemBusy, match="producer 0000000000000007 has 5 open parts"):
        room(of, limits, "x5")
    room(of, limits, "x5", 8)


def test_names_that_ended_least_recently_are_forgotten() -> None:
    of = table(max_names=2)
    for at, name in enumerate(("x", "y", "x", "z")):
        of.decide(decided(name, at), at)
    assert [*of.ended.ends] == ["x", "z"]
    of.check_open(TransactionId("y", 0), 1)
    with pytest.raises(TransactionEnded):
        of.check_open(TransactionId("x", 2), 1)


def test_decisions_are_bounded_by_their_size() -> None:
    of = table(max_decision_bytes=100)
    for number in range(5):  # a later one of the same name takes the place of the one before
        of.decide(decided("x", number, decision=bytes(60)), number)
    of.decide(decided("y", 0, decision=bytes(40)), 10)
    assert [*of.ended.ends] == ["x", "y"]
    of.decide(decided("z", 0, decision=bytes(1)), 11)
    assert [*of.ended.ends] == ["y", "z"]
    of.decide(decided("z", 1, decision=bytes(1000)), 12)
    assert [*of.ended.ends] == ["z"]


# ---- Whatever happens --------------------------------------------------------------------------------
