"""A log is told from all others by what its first term brought; a copy of it is the same log."""

from __future__ import annotations

from contextlib import closing

from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit.writer import term_begun
from minimq_broker.state.facts import TermBegun
from minimq_broker.state.state import State
from support.kernel_stores import Stores


def test_every_log_has_another_identity_and_keeps_it(stores: Stores) -> None:
    first, other, slave = stores.open("a"), stores.open("b"), stores.open("slave", alone=False)
    for store in (first, other):
        store.create_topic("t")
    log_id = first.state.log_id
    assert log_id
    assert log_id != other.state.log_id
    assert slave.state.log_id == "", "there is nothing in it"
    slave.take_from(first)
    assert slave.state.log_id == log_id
    slave.store.writer.lead(7)
    assert slave.state.log_id == log_id

    first.close()
    again = stores.open("a")
    again.create_topic("u")
    assert (again.state.log_id, again.state.term) == (log_id, 2)


def test_a_copy_has_the_identity_also_without_the_entry_that_brought_it(stores: Stores) -> None:
    first = stores.open("a", segment_bytes=48 << 10)
    first.create_topic("t")
    for _ in range(10):
        first.append("t", 0, bytes(20_000))
    log_id = first.state.log_id
    first.close()
    first = stores.open("a", segment_bytes=48 << 10)
    assert first.store.remove_first(first.store.saved_position)
    start, snapshot = first.store.log.start, first.store.snapshot()
    with closing(StoreCopy(stores.folder / "copy", snapshot, start)) as copy:
        copy.put(first.store.entries(start, 1 << 30))
        copy.finish()
    assert start > 0
    assert stores.open("copy", alone=False).state.log_id == log_id


def test_a_log_gets_its_identity_with_its_first_term() -> None:
    state = State()
    begun = term_begun(4, state)
    assert begun.log_id
    state.apply(begun, 20)
    assert state.log_id == begun.log_id
    assert term_begun(5, state) == TermBegun(5)
