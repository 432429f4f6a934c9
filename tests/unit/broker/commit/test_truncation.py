"""The end of a log is cut off, and the state goes back with it: also when it is interrupted at any moment."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import lmdb
import pytest

from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.segment import Segment
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted, Topic, TopicDeleted, TopicSet
from minimq_common.errors import CopyNeeded, CorruptEntry, InternalError
from support.page_pictures import photographed
from support.states import rows
from support.stores import TIMEOUT_S, OpenStore, Stores, make_batch, numbered_batch

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
    store.store.lead(store.state.term + 1)
    found += write(store, range(count))
    store.store.follow()
    return found


def test_a_log_can_be_cut_at_every_position(stores: Stores) -> None:
    store = open_slave(stores)
    states = grow(store)
    assert len(store.store.log.segments) > 3
    for position, state in reversed(states):
        store.store.truncate(position)
        assert store.store.end == store.store.log.end == position
        assert rows(store.state) == state
    assert len(store.store.log.segments) == 1
    grow(store, 10)  # the room is used again


def test_a_checkpoint_behind_the_position_is_kept(stores: Stores) -> None:
    store = open_slave(stores)
    grow(store, 10)
    store.store.confirm(store.store.end)
    store.close()  # saves
    store = open_slave(stores)
    saved = store.store.saved_position
    assert saved == store.store.end
    states = grow(store, 20)
    store.store.truncate(states[5][0])
    assert store.store.saved_position == saved
    assert rows(store.state) == states[5][1]


def test_a_checkpoint_beyond_the_position_gives_way_to_the_log(stores: Stores) -> None:
    store, states = saved_at_the_end(stores)
    position, state = states[20]
    store.store.truncate(position)
    assert store.store.saved_position == 0
    assert rows(store.state) == state


def saved_at_the_end(stores: Stores, name: str = "data") -> tuple[OpenStore, list[tuple[int, dict[str, Any]]]]:
    store = open_slave(stores, name)
    states = grow(store)
    store.store.confirm(store.store.end)
    store.close()
    store = open_slave(stores, name)
    assert store.store.saved_position == store.store.end
    return store, states


def test_what_is_needed_of_old_segments_is_determined_anew(stores: Stores) -> None:
    store, states = saved_at_the_end(stores)
    old = store.store.old
    old.look(stores.clock())
    assert old.known_to == store.store.end
    store.store.truncate(states[20][0])
    assert old.known_to == old.rewritable_to == -1
    store.store.lead(9)
    store.create_topic("new")
    old.look(stores.clock())  # before the state is saved, at a position below the former one
    assert old.known_to == -1
    saved: list[bool] = []
    store.store.call(lambda: saved.append(store.store._writer._save()))
    assert saved == [True]
    old.look(stores.clock())
    assert old.known_to == store.store.end < states[-1][0]


def test_a_log_without_its_begin_cannot_be_cut_behind_the_checkpoint(stores: Stores) -> None:
    store, states = saved_at_the_end(stores)
    before = rows(store.state)
    assert store.store.old.remove_first(store.store.end)
    with pytest.raises(CopyNeeded, match="cannot be recovered, copy everything again"):
        store.store.truncate(states[-2][0])
    with pytest.raises(CopyNeeded, match="copy everything again"):
        store.store.truncate(0)
    assert rows(store.state) == before
    store.store.truncate(store.store.end)  # nothing to do
    store.store.lead(9)
    assert rows(store.state)["term"] == 9


def test_a_log_is_cut_where_entries_begin(stores: Stores) -> None:
    store = open_slave(stores)
    end = grow(store, 5)[-1][0]
    for wrong in (1, end - 1, end + 1):
        with pytest.raises(CopyNeeded, match=f"cannot be cut at {wrong}, where no entry begins"):
            store.store.truncate(wrong)
    assert store.store.end == end


def test_what_is_left_but_not_confirmed_stays_out_of_sight(stores: Stores) -> None:
    store = open_slave(stores)
    store.store.lead(1, waits_for_replicas=True)
    store.submit_fact(lambda state: TopicSet(Topic("t", state.position, 1, 1)))
    ends = []
    for number in range(6):
        store.submit("t", 0, make_batch([b"%d" % number]))
        store.store.call(lambda: ends.append(store.store.end))
    store.close()
    store = open_slave(stores)
    store.store.confirm(ends[2])
    assert store.bodies("t", 0) == [b"0", b"1", b"2"]
    store.store.truncate(ends[4])
    assert store.bodies("t", 0) == [b"0", b"1", b"2"]
    store.store.confirm(ends[3])
    assert store.bodies("t", 0) == [b"0", b"1", b"2", b"3"]
    entries = store.store.entries(ends[1], 1 << 20)
    store.store.truncate(ends[1])
    assert store.bodies("t", 0) == [b"0", b"1"]
    assert store.store.confirmed == ends[1]
    store.submit_entries(ends[1], entries[:1]).result(TIMEOUT_S)
    assert store.bodies("t", 0) == [b"0", b"1"], "what was confirmed there before was something else"


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
            store.store.truncate(states[20][0])
    with pytest.raises(InternalError, match="restart the broker"):
        store.store.lead(9)
    store.close()
    store = open_slave(stores)
    store.store.truncate(states[20][0])
    assert rows(store.state) == states[20][1]


@pytest.mark.parametrize("saved", [False, True])
def test_a_crash_at_any_stage(stores: Stores, saved: bool) -> None:
    if saved:
        store, states = saved_at_the_end(stores)
    else:
        store = open_slave(stores)
        states = grow(store)
    position, state = states[15]
    steps = ((Checkpoint, "clear"), (Segment, "remove_file"), (Segment, "truncate"))
    with photographed(store.path, stores.folder, *steps) as copies:
        store.store.truncate(position)
    assert len(copies) >= 4 + saved, "several segments, one of them in part"
    for path in copies:
        copy = open_slave(stores, path.name)
        assert copy.store.end >= position
        copy.store.truncate(position)
        assert rows(copy.state) == state
        copy.close()
        again = open_slave(stores, path.name)
        assert rows(again.state) == state
        again.close()
