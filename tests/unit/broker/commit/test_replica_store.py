"""A slave stores the entries of its master as they are, where they are, or not at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from click.testing import CliRunner

from minimq_broker.__main__ import main
from minimq_broker.backup.check import compare_directories
from minimq_broker.log.entry import HEADER_BYTES
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.errors import CorruptEntry, InvalidArgument, NotMaster
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, make_batch, numbered_batch
from support.states import rows


@pytest.fixture
def master(stores: Stores) -> OpenStore:
    """A master with a topic, batches with and without numbers, and committed offsets, in several segments."""
    opened = stores.open("master", segment_bytes=96 << 10)
    opened.create_topic("t", 2)
    for number in range(20):
        opened.append("t", number % 2, b"%d" % number, bytes(10_000))
        opened.submit("t", 0, numbered_batch(7, number)).result(TIMEOUT_S)
        opened.record(OffsetsCommitted("g", (CommittedOffset(*opened.key("t", 0), number),)), alone=False)
    return opened


@pytest.fixture
def slave(stores: Stores) -> OpenStore:
    return stores.open("slave", alone=False, segment_bytes=64 << 10)


def all_entries(store: OpenStore) -> list[bytes]:
    return store.store.entries(0, 1 << 40)


def flip(entry: bytes, index: int) -> bytes:
    return entry[:index] + bytes([entry[index] ^ 1]) + entry[index + 1 :]


@pytest.mark.parametrize(
    ("which", "harm"),
    [
        pytest.param(2, lambda entry: flip(entry, 9), id="header of an entry"),
        pytest.param(2, lambda entry: flip(entry, len(entry) - 200), id="body in a batch"),
        pytest.param(2, lambda entry: flip(entry, len(entry) - 1), id="checksum of a batch"),
        pytest.param(1, lambda entry: flip(entry, HEADER_BYTES + 3), id="fact"),
        pytest.param(1, lambda entry: entry[:-1], id="fact without its last byte"),
        pytest.param(2, lambda entry: entry[:-1], id="batch without its last byte"),
        pytest.param(2, lambda entry: entry[:20], id="less than a header"),
        pytest.param(2, lambda _: b"", id="nothing"),
    ],
)
def test_a_damaged_entry_is_rejected_with_all_that_came_with_it(
    master: OpenStore, slave: OpenStore, which: int, harm: Callable[[bytes], bytes]
) -> None:
    entries = all_entries(master)
    damaged = [*entries[:which], harm(entries[which]), *entries[which + 1 :]]
    with pytest.raises(CorruptEntry, match=f"position {sum(map(len, entries[:which]))}"):
        slave.submit_entries(0, damaged).result(TIMEOUT_S)
    assert (slave.store.end, slave.state.topics) == (0, {})
    slave.take_from(master)
    assert rows(slave.state) == rows(master.state)


def test_who_leads_takes_no_entries_and_who_follows_takes_nothing_else(master: OpenStore, slave: OpenStore) -> None:
    slave.take_from(master)
    with pytest.raises(NotMaster):
        slave.append("t", 0, b"x")
    with pytest.raises(InvalidArgument, match="a master accepts no entries"):
        master.submit_entries(master.store.end, all_entries(master)[:1]).result(TIMEOUT_S)
    with pytest.raises(InvalidArgument, match="the log of a master"):
        master.store.writer.truncate(0)
    slave.store.writer.lead(7)
    assert slave.append("t", 1, b"x") == master.store.bounds(master.key("t", 1))[1]


def test_a_segment_is_read_to_its_end_by_those_who_read_it_when_it_is_removed(
    stores: Stores, master: OpenStore
) -> None:
    master.close()
    again = stores.open("master", segment_bytes=96 << 10)
    again.record(lambda _: None)  # comes back behind the fact that a term has begun
    expected = [bytes(entry) for _, entry in again.store.log.entries()]
    reader = again.store.log.entries()
    found = [bytes(next(reader)[1])]
    removed = again.store.log.segments[0].path
    while again.store.remove_first(again.store.end):
        pass
    assert len(again.store.log.segments) == 1
    assert not removed.exists()
    found += [bytes(entry) for _, entry in reader]
    assert found == expected


def test_compare_names_the_first_position_that_differs(stores: Stores, master: OpenStore, slave: OpenStore) -> None:
    entries = all_entries(master)
    slave.submit_entries(0, entries[:5]).result(TIMEOUT_S)
    end = slave.store.end
    slave.store.writer.lead(9)
    slave.submit("t", 0, make_batch([b"other"])).result(TIMEOUT_S)
    for store in (master, slave):
        store.close()
    found = compare_directories(master.path, slave.path)
    assert (found.entries, found.start) == (5, 0)
    assert found.difference == f"position {end}: the entries differ"
    assert found.summary == f"different: position {end}: the entries differ"


def test_check_compares_on_the_command_line(stores: Stores, master: OpenStore, slave: OpenStore) -> None:
    slave.take_from(master)
    slave.store.writer.lead(9)
    for store in (master, slave):
        store.close()
    same = CliRunner().invoke(main, ["check", str(master.path), "--compare", str(master.path)])
    assert (same.exit_code, "in use by process" in same.output) == (1, True)
    same = CliRunner().invoke(main, ["check", str(slave.path), "--compare", str(master.path)])
    assert same.exit_code == 0, same.output
    assert "the same: " in same.output.splitlines()[-1]
    again = stores.open("master")
    again.record(lambda _: None)
    again.close()
    differs = CliRunner().invoke(main, ["check", str(slave.path), "--compare", str(master.path)])
    assert differs.exit_code == 1
    assert "entries differ" in differs.output.splitlines()[-1]
