"""A replica that is copied from another: from the saved state and the log, also when it is interrupted anywhere."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.log.checkpoint import Snapshot
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.errors import CopyInterrupted, CorruptEntry, DataDirectoryInUse, StoreError
from support.kernel_stores import TIMEOUT_S, OpenStore, Stores, numbered_batch
from support.states import rows

SEGMENT_BYTES = 64 << 10


def fill(store: OpenStore, numbers: range) -> None:
    for number in numbers:
        store.append("t", number % 2, b"%d" % number, bytes(18_000))
        store.submit("t", 0, numbered_batch(7, number)).result(TIMEOUT_S)
        store.record(OffsetsCommitted("g", (CommittedOffset(*store.key("t", 0), number),)), alone=False)


@pytest.fixture(params=[False, True], ids=["whole", "begin removed"])
def master(stores: Stores, request: pytest.FixtureRequest) -> OpenStore:
    """A master whose state was saved halfway, with its log from 0 on or from later on."""
    store = stores.open("master", segment_bytes=SEGMENT_BYTES)
    store.create_topic("t", 2)
    fill(store, range(8))
    store.close()
    store = stores.open("master", segment_bytes=SEGMENT_BYTES)
    assert not request.param or store.store.remove_first(store.store.saved_position)
    fill(store, range(8, 16))
    return store


def copy_of(
    master: OpenStore, path: Path, *, end: int | None = None, replace: bool = False, frame_bytes: int = 20_000
) -> None:
    """Copy a master up to a position, or else up to its saved state, and no further."""
    snapshot = master.store.snapshot()
    end = snapshot.position if end is None else end
    with closing(StoreCopy(path, snapshot, master.store.log.start, SEGMENT_BYTES, replace=replace)) as copy:
        while copy.position < end:
            copy.put(master.store.entries(copy.position, min(frame_bytes, end - copy.position)))
        copy.finish()


def test_a_copy_with_entries_behind_the_state_is_a_backup(stores: Stores, master: OpenStore) -> None:
    copy_of(master, stores.folder / "backup", end=master.store.end)
    before = rows(master.state)
    assert check_directory(stores.folder / "backup").findings == []
    backup = stores.open("backup", alone=False)
    assert rows(backup.state) == before
    backup.close()
    backup = stores.open("backup")  # also a broker that stands alone opens it
    backup.append("t", 0, b"more")
    assert backup.store.term == before["term"] + 1


def test_what_is_damaged_is_not_copied(stores: Stores, master: OpenStore) -> None:
    snapshot, start = master.store.snapshot(), master.store.log.start
    for which in range(len(snapshot.rows)):
        key, value = snapshot.rows[which]
        harmed = [*snapshot.rows]
        harmed[which] = key, value[:-1] + bytes([value[-1] ^ 1])
        with pytest.raises(StoreError, match="damaged"):
            StoreCopy(stores.folder / "slave", Snapshot(snapshot.position, harmed), start)
    entry = master.store.entries(start, 1)[0]
    with closing(StoreCopy(stores.folder / "slave", snapshot, start)) as copy:
        with pytest.raises(CorruptEntry, match=f"position {start} "):
            copy.put([bytes([entry[0] ^ 1]) + entry[1:]])
        assert copy.position == start
        copy.put([entry])
        with pytest.raises(StoreError, match="ahead of the state"):
            copy.finish()
    with pytest.raises(CopyInterrupted):
        stores.open("slave")
    assert stores.open("slave", alone=False).store.end == 0


def test_a_state_behind_the_log_is_rejected(stores: Stores, master: OpenStore) -> None:
    with pytest.raises(StoreError, match="behind the state"):
        StoreCopy(stores.folder / "slave", master.store.snapshot(), master.store.end)
    assert not (stores.folder / "slave").exists()


def test_a_log_is_replaced_only_when_that_is_wanted(stores: Stores, master: OpenStore) -> None:
    slave = stores.open("slave")
    slave.create_topic("other")
    with pytest.raises(DataDirectoryInUse):
        copy_of(master, slave.path, replace=True)
    before = rows(slave.state)
    slave.close()
    with pytest.raises(StoreError, match="choose an empty directory"):
        copy_of(master, slave.path)
    again = stores.open("slave", alone=False)
    assert rows(again.state) == before
    again.close()
    copy_of(master, slave.path, end=master.store.end, replace=True)
    again = stores.open("slave", alone=False)
    assert rows(again.state) == rows(master.state)


@pytest.mark.parametrize("name", ["thesis.tex", "state.mdb", "state.mdb.notes", "owner", "commitlog/x"])
def test_a_copy_goes_into_no_directory_that_holds_something(stores: Stores, master: OpenStore, name: str) -> None:
    folder = stores.folder / "folder"
    file = folder / name
    file.parent.mkdir(parents=True)
    file.write_text("of the user")
    before = sorted(folder.rglob("*"))
    with pytest.raises(StoreError, match=f"{folder} holds {file.relative_to(folder).parts[0]}: choose an empty"):
        copy_of(master, folder)
    assert sorted(folder.rglob("*")) == before
    assert file.read_text() == "of the user"
