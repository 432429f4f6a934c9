"""The end of a log is cut off, and the state goes back with it: also when it is interrupted at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lmdb
import pytest

from minimq_broker.log.segment import Segment
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted, TopicDeleted
from minimq_common.errors import CopyNeeded, CorruptEntry, InternalError
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, numbered_batch
from support.states import rows

SEGMENT_BYTES = 64 << 10


def write(store: OpenStore, numbers: range) -> Iterator[tuple[int, dict[str, Any]]]:
    """Write this and that, and yield each position on the way with the state there."""
    term = store.state.term
    for number in numbers:
        topic = f"t{term}-{number - number % 7}"
        if number % 7 == 0:
            store.create_topic(topic, 2)
        store.append(topic, number % 2, b"%d" % number, bytes(5_000))
        store.submit(topic, 0, numbered_batch(term, number, unsettled=10)).result(TIMEOUT_S)
        store.record(OffsetsCommitted("g", (CommittedOffset(*store.key(topic, 0), number % 7),)), alone=False)
        if number % 14 == 13:
            store.record(TopicDeleted(topic))
        yield store.store.end, rows(store.state)


def open_slave(stores: Stores, name: str = "data") -> OpenStore:
    return stores.open(name, alone=False, segment_bytes=SEGMENT_BYTES)


def grow(store: OpenStore, count: int = 40) -> list[tuple[int, dict[str, Any]]]:
    """Lead a term and write; return positions with states, the first ahead of all."""
    found = [(store.store.end, rows(store.state))]
    store.store.writer.lead(store.state.term + 1)
    found += write(store, range(count))
    store.store.writer.follow()
    return found


@pytest.mark.replaced_by("machine")
def test_a_checkpoint_beyond_the_position_gives_way_to_the_log(stores: Stores) -> None:
    store, states = saved_at_the_end(stores)
    position, state = states[20]
    store.store.writer.truncate(position)
    assert store.store.saved_position == 0
    assert rows(store.state) == state


def saved_at_the_end(stores: Stores, name: str = "data") -> tuple[OpenStore, list[tuple[int, dict[str, Any]]]]:
    store = open_slave(stores, name)
    states = grow(store)
    store.store.confirmation.confirm(store.store.end)
    store.close()
    store = open_slave(stores, name)
    assert store.store.saved_position == store.store.end
    return store, states


def test_a_log_without_its_begin_cannot_be_cut_behind_the_checkpoint(stores: Stores) -> None:
    store, states = saved_at_the_end(stores)
    before = rows(store.state)
    assert store.store.remove_first(store.store.end)
    with pytest.raises(CopyNeeded, match="cannot be recovered, copy everything again"):
        store.store.writer.truncate(states[-2][0])
    with pytest.raises(CopyNeeded, match="copy everything again"):
        store.store.writer.truncate(0)
    assert rows(store.state) == before
    store.store.writer.truncate(store.store.end)  # nothing to do
    store.store.writer.lead(9)
    assert rows(store.state)["term"] == 9


@pytest.mark.parametrize("error", [lmdb.Error("no more"), CorruptEntry("no more")], ids=["lmdb", "minimq"])
def test_an_error_on_the_way_stops_the_store(stores: Stores, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """The state is of a log that is not there any more: nothing may be written on top of it."""
    store = open_slave(stores)
    states = grow(store)

    def fail(segment: Segment, position: int) -> None:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(Segment, "truncate", fail)
        with pytest.raises(InternalError, match="restart the broker"):
            store.store.writer.truncate(states[20][0])
    with pytest.raises(InternalError, match="restart the broker"):
        store.store.writer.lead(9)
    store.close()
    store = open_slave(stores)
    store.store.writer.truncate(states[20][0])
    assert rows(store.state) == states[20][1]
