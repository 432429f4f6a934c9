"""Damage in any file of a data directory is found before it is used."""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import msgspec
import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.log.checkpoint import ChangedRows, Checkpoint
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_broker.log.file_checksum import make_checksum, remove_checksum
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, CorruptEntry, StoreError
from support.checking import findings_of
from support.kernel_stores import OpenStore, Stores, batches_of

PAGE = 4096
GROUPS = 20


@pytest.fixture(autouse=True)
def pages_are_read_here() -> None:
    """A child process reads the pages, as in a broker."""


@pytest.fixture
def filled(stores: Stores) -> Path:
    """A closed directory: three segments, offsets of many groups, batches in pages of their own and within leaves."""
    store = stores.open(segment_bytes=96 << 10)
    store.create_topic("t", 2)
    for number in range(24):
        store.append("t", number % 2, b"%d-" % number + bytes(9000 if number % 3 else 10))
        if number < GROUPS:
            store.record(OffsetsCommitted(f"group-{number:02d}", (CommittedOffset(*store.key("t", 0), number),)))
    assert len(store.store.log.segments) >= 3
    store.close()
    for file in segments(store.path)[:-1]:
        list(make_checksum(file))
    stores.damaged.add(store.path)
    return store.path


def told(store: OpenStore) -> tuple[list[list[str]], list[int | None]]:
    """Return all that is stored: the beginnings of bodies, and committed offsets."""
    bodies = [[body.split(b"-")[0].decode() for body in store.bodies("t", queue)] for queue in range(2)]
    return bodies, [store.state.offset(f"group-{number:02d}", store.key("t", 0)) for number in range(GROUPS)]


EVERY = [[str(number) for number in range(queue, 24, 2)] for queue in range(2)], list(range(GROUPS))


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").glob("*.mdb"))


# ---- the number of the last transaction ---------------------------------------------------------


def take_back(file: Path) -> None:
    """Change the number of the last transaction by a bit or some, so that LMDB opens the one before it."""
    data = bytearray(file.read_bytes())
    places = [page * PAGE + 16 + 24 + 2 * 48 + 8 for page in range(2)]
    numbers = [int.from_bytes(data[at : at + 8], "little") for at in places]
    newest = numbers.index(max(numbers))
    data[places[newest] : places[newest] + 8] = (numbers[newest] - 2).to_bytes(8, "little")
    file.write_bytes(data)


@pytest.mark.parametrize("name", ["state.mdb", "first segment", "last segment"])
def test_a_commit_that_its_number_hides_is_named(stores: Stores, filled: Path, name: str) -> None:
    files = {
        "state.mdb": filled / "state.mdb",
        "first segment": segments(filled)[0],
        "last segment": segments(filled)[-1],
    }
    with closing(Checkpoint(filled / "state.mdb")) as checkpoint:  # its first transaction has none before it
        checkpoint.save(ChangedRows(checkpoint.load().position, []))
    take_back(files[name])
    finding = findings_of(filled)[0]
    assert ("CRC-32C" if name == "first segment" else "is not the one that has freed pages last") in finding
    if name == "state.mdb":
        assert told(stores.open(segment_bytes=96 << 10)) == EVERY
    elif name == "last segment":
        with pytest.raises(StoreError, match="has freed pages last"):
            stores.open(segment_bytes=96 << 10)


# ---- the checkpoint -----------------------------------------------------------------------------


def lose_a_row(file: Path) -> None:
    """Delete a row in such a way that the pages are in order, as an old page in the place of a new one might be."""
    with lmdb.open(str(file), subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        assert txn.delete(next(key for key, _ in txn.cursor() if b"group-07" in key))


@pytest.mark.parametrize("harm", [lose_a_row, lambda file: os.truncate(file, 0)])
def test_a_damaged_checkpoint_is_named_and_found_anew_from_the_log(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    harm(filled / "state.mdb")
    assert any("state.mdb" in line for line in findings_of(filled))
    with caplog.at_level(logging.ERROR):
        store = stores.open(segment_bytes=96 << 10)
    assert told(store) == EVERY
    [line] = [line for line in caplog.messages if "a damaged checkpoint is set aside" in line]
    assert f"file={filled}/state.mdb.damaged-1" in line
    store.close()
    assert findings_of(filled) == []


def test_a_damaged_checkpoint_that_alone_knows_what_was_deleted_is_rejected(stores: Stores, filled: Path) -> None:
    store = stores.open(segment_bytes=96 << 10)
    assert store.store.remove_first(1 << 60)
    store.close()
    lose_a_row(filled / "state.mdb")
    before = (filled / "state.mdb").read_bytes()
    with pytest.raises(DamagedFile, match=r"state\.mdb is damaged: .*restore the data directory"):
        stores.open(segment_bytes=96 << 10)
    assert (filled / "state.mdb").read_bytes() == before


def test_a_checkpoint_without_its_sum_is_damaged(filled: Path) -> None:
    with lmdb.open(str(filled / "state.mdb"), subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        assert txn.delete(msgspec.msgpack.encode(["sum"]))
    assert any("rows are missing" in line for line in findings_of(filled))


# ---- segments -----------------------------------------------------------------------------------


def flip(file: Path, at: int, mask: int = 3) -> None:
    data = bytearray(file.read_bytes())
    data[at] ^= mask
    file.write_bytes(data)


def root_of(file: Path, table: bytes) -> int:
    """Return where the root page of a table begins."""
    with lmdb.open(str(file), subdir=False, max_dbs=4, readonly=True, lock=False) as env, env.begin() as txn:
        return PAGE * int.from_bytes((txn.get(table) or b"")[40:48], "little")


def read_all(store: OpenStore) -> tuple[set[str], list[CorruptEntry | CorruptBatch]]:
    """Return the beginnings of all readable bodies, and the errors of the others."""
    seen: set[str] = set()
    errors: list[CorruptEntry | CorruptBatch] = []
    for queue in range(2):
        offset, end = 0, store.state.end(store.key("t", queue)).offset
        while offset < end:
            try:
                [stored, *_] = store.read("t", queue, offset, 1)
                seen |= {body.split(b"-")[0].decode() for body in RecordBatch(stored.data).bodies()}
                offset = stored.base_offset + stored.count
            except (CorruptEntry, CorruptBatch) as error:
                errors.append(error)
                offset = max(getattr(error, "next_offset", None) or 0, offset + 1)
    return seen, errors


def test_a_segment_with_a_damaged_body_is_served_without_it(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = segments(filled)[1]
    flip(file, file.read_bytes().index(bytes(8000)))
    store = stores.open(segment_bytes=96 << 10)
    [line] = [line for line in caplog.messages if "a segment is damaged" in line]
    assert "served as far as it is readable" in line
    assert "does not match its CRC-32C" in line
    seen, errors = read_all(store)
    assert (len(seen), len(errors)) == (23, 1)
    assert list(store.store.log.damage) == [int(file.stem)]


@pytest.mark.parametrize("number", [0, 1])
def test_a_segment_with_a_damaged_page_is_not_served_and_the_others_are(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    file = segments(filled)[number]
    sound = file.read_bytes()
    flip(file, root_of(file, b"consumequeue") + 10)  # whether it is a leaf
    for _ in range(2):  # it stays so
        caplog.clear()
        store = stores.open(segment_bytes=96 << 10)
        [line] = [line for line in caplog.messages if "a segment is damaged" in line]
        assert "and not served" in line
        assert file.name in line
        seen, errors = read_all(store)
        assert 8 < len(seen) < 24
        assert all("are missing" in str(error) for error in errors)
        assert bool(errors) == bool(number)  # without the first segment, queues begin later
        store.append("t", 0, b"more-")
        store.close()
    assert any(file.name in finding for finding in findings_of(filled))
    file.write_bytes(sound)
    assert read_all(stores.open(segment_bytes=96 << 10)) == ({*map(str, range(24)), "more"}, [])


def test_a_segment_that_is_not_served_is_deleted_with_the_older_ones(stores: Stores, filled: Path) -> None:
    first, second, *_ = segments(filled)
    flip(second, root_of(second, b"log") + 10)
    store = stores.open(segment_bytes=96 << 10)
    assert store.store.remove_first(1 << 60)
    assert not first.exists()
    assert not second.exists()


@pytest.mark.parametrize("table", [b"log", b"consumequeue"])
def test_a_damaged_page_of_the_last_segment_stops_the_broker(stores: Stores, filled: Path, table: bytes) -> None:
    file = segments(filled)[-1]
    flip(file, root_of(file, table) + 10)
    data = file.read_bytes()
    with pytest.raises(DamagedFile, match=rf"{file.name} is damaged: .*: restore the data directory from a copy"):
        stores.open(segment_bytes=96 << 10)
    assert file.read_bytes() == data
    [finding] = [finding for finding in check_directory(filled).findings if finding.file == file.name]
    assert finding.remedy == "replica: minimq-broker rebuild; alone: restore a backup"


def test_a_read_gets_no_other_batch_than_that_of_its_row(stores: Stores, filled: Path) -> None:
    """Two entries of one size change places: all checksums are right, and so are the pages."""
    store = stores.open(segment_bytes=96 << 10)
    one, two = (store.store.log.row_at(store.key("t", queue), offset) for queue, offset in ((0, 1), (1, 0)))
    assert one is not None
    assert two is not None
    assert one.size == two.size
    entries = [store.store.log.entry_at(row.position) for row in (one, two)]
    file = segments(filled)[0]
    data = file.read_bytes()
    file_parts = data.replace(entries[0], b"\0" * one.size).replace(entries[1], entries[0])
    store.close()
    file.write_bytes(file_parts.replace(b"\0" * one.size, entries[1], 1))
    remove_checksum(file)
    store = stores.open(segment_bytes=96 << 10)
    for queue, offset in ((0, 1), (1, 0)):
        with pytest.raises(CorruptEntry, match="where another entry is"):
            store.read("t", queue, offset, 1)
    assert any("the index row of queue" in line for line in check_directory_of(store))


def check_directory_of(store: OpenStore) -> list[str]:
    store.close()
    return findings_of(store.path)


@pytest.mark.parametrize("place", [0, 41])
def test_a_flipped_bit_in_an_index_row_is_a_named_error(stores: Stores, filled: Path, place: int) -> None:
    file = segments(filled)[0]
    remove_checksum(file)
    with lmdb.open(str(file), subdir=False, max_dbs=2, map_size=1 << 30) as env:
        table = env.open_db(b"consumequeue", create=False)
        with env.begin(write=True) as txn, txn.cursor(table) as cursor:
            assert cursor.first()
            key, value = cursor.key(), bytearray(cursor.value())
            value[place] ^= 0x04
            txn.put(key, bytes(value), db=table)
    store = stores.open(segment_bytes=96 << 10)
    queue = store.key("t", 0)
    with pytest.raises(CorruptEntry, match=r"cannot be read at offset 0 .*go on from offset 1"):
        batches_of(store.store, queue, 0, 1, 1)
    with pytest.raises(CorruptEntry):
        store.store.log.row_at(queue, 0)
    assert store.bodies("t", 0, 1) == store.bodies("t", 0, 1)
    store.close()
    assert any("index row" in line for line in findings_of(filled))


# ---- the owner -----------------------------------------------------------------------


def test_a_flipped_bit_in_the_owner_is_named(stores: Stores, filled: Path) -> None:
    owner = Owner("cluster", "broker-a", 1)
    DataDirectory(filled, create=True, owner=owner).close()
    text = (filled / "owner").read_text()
    assert findings_of(filled) == []
    (filled / "owner").write_text(text.replace('"id": 1', '"id": 3'))
    assert any("does not match its CRC-32C" in line for line in findings_of(filled))
    with pytest.raises(StoreError, match=r"owner.* does not match its CRC-32C"):
        DataDirectory(filled, create=True, owner=owner)


# ---- what ends a process nevertheless -----------------------------------------------------------


def test_a_fault_of_memory_is_told_by_the_next_start_which_looks_at_all_files(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    script = """
import faulthandler, sys
from pathlib import Path
from minimq_broker.backup.crash_note import leave_notes

leave_notes(Path(sys.argv[1]))
faulthandler._sigabrt()
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script, str(filled)], env=environment, check=False, timeout=60)
    assert run.returncode == -signal.SIGABRT
    for expected in (1, 0):
        caplog.clear()
        with caplog.at_level(logging.ERROR):
            stores.open(segment_bytes=96 << 10).close()
        lines = [line for line in caplog.messages if "was killed by a memory fault" in line]
        assert len(lines) == expected
        assert all("Fatal Python error: Aborted" in line and "File" in line for line in lines)
