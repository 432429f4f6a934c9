"""Damage in any file of a data directory is found before it is used: made good from the log, or named."""

from __future__ import annotations

import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import lmdb
import msgspec
import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.log.checkpoint import ChangedRows, Checkpoint
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_broker.log.lmdb_file import DamagedFile
from minimq_broker.state.facts import CommittedOffset, OffsetsCommitted
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptEntry, MinimqError, StoreError
from minimq_common.replicas.election import found
from minimq_nameserver.controller.decisions import DecisionFile
from support.chance import SEED
from support.reports import report
from support.stores import OpenStore, Stores, batches_of

PAGE = 4096
GROUPS = 20


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
    stores.damaged.add(store.path)
    return store.path


def told(store: OpenStore) -> tuple[list[list[str]], list[int | None]]:
    """Return all that is stored: the beginnings of bodies, and committed offsets."""
    bodies = [[body.split(b"-")[0].decode() for body in store.bodies("t", queue)] for queue in range(2)]
    return bodies, [store.state.offset(f"group-{number:02d}", store.key("t", 0)) for number in range(GROUPS)]


EVERY = [[str(number) for number in range(queue, 24, 2)] for queue in range(2)], list(range(GROUPS))


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").glob("*.mdb"))


def pages_of(file: Path, flag: int) -> list[int]:
    """Return the numbers of the pages of a kind: 1 branches, 2 leaves, 4 the first ones of long values."""
    data = file.read_bytes()
    flags = {number: data[number * PAGE + 10 : number * PAGE + 12] for number in range(2, len(data) // PAGE)}
    return [number for number, found in flags.items() if int.from_bytes(found, "little") == flag]


def swap(file: Path, one: int, two: int) -> None:
    data = bytearray(file.read_bytes())
    left, right = slice(one * PAGE, (one + 1) * PAGE), slice(two * PAGE, (two + 1) * PAGE)
    data[left], data[right] = data[right], data[left]
    file.write_bytes(data)


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
    assert any("is of transaction" in line for line in check_directory(filled).findings)
    if name == "state.mdb":
        assert told(stores.open(segment_bytes=96 << 10)) == EVERY
    elif name == "last segment":
        with pytest.raises(StoreError, match="is of transaction"):
            stores.open(segment_bytes=96 << 10)


def test_a_decision_that_its_number_hides_is_named(tmp_path: Path) -> None:
    decided(tmp_path, 3)
    take_back(tmp_path / "decisions.mdb")
    with pytest.raises(StoreError, match="is of transaction"):
        DecisionFile(tmp_path)


# ---- the checkpoint -----------------------------------------------------------------------------


def lose_rows(file: Path) -> None:
    """Lower the number of rows that leaves say they have, each by one bit, as a fault of a disk might."""
    data = bytearray(file.read_bytes())
    for page in pages_of(file, 2):
        lower = int.from_bytes(data[page * PAGE + 12 :][:2], "little")
        bit = next((bit for bit in (16, 32, 8, 64) if lower & bit and lower - bit > 16), 0)
        data[page * PAGE + 12 : page * PAGE + 14] = (lower - bit).to_bytes(2, "little")
    file.write_bytes(data)


def lose_a_row(file: Path) -> None:
    """Delete a row in such a way that the pages are in order, as an old page in the place of a new one might be."""
    with lmdb.open(str(file), subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        assert txn.delete(next(key for key, _ in txn.cursor() if b"group-07" in key))


@pytest.mark.parametrize("harm", [lose_rows, lose_a_row, lambda file: os.truncate(file, 0)])
def test_a_damaged_checkpoint_is_named_and_found_anew_from_the_log(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture, harm: Callable[[Path], None]
) -> None:
    harm(filled / "state.mdb")
    assert any("state.mdb" in line for line in check_directory(filled).findings)
    with caplog.at_level(logging.ERROR):
        store = stores.open(segment_bytes=96 << 10)
    assert told(store) == EVERY
    [line] = [line for line in caplog.messages if "a damaged checkpoint is set aside" in line]
    assert f"file={filled}/state.mdb.damaged-1" in line
    store.close()
    assert check_directory(filled).findings == []


def test_a_damaged_checkpoint_that_alone_knows_what_was_deleted_is_rejected(stores: Stores, filled: Path) -> None:
    store = stores.open(segment_bytes=96 << 10)
    assert store.store.old.remove_first(1 << 60)
    store.close()
    lose_rows(filled / "state.mdb")
    before = (filled / "state.mdb").read_bytes()
    with pytest.raises(DamagedFile, match=r"state\.mdb is damaged: .*restore the data directory"):
        stores.open(segment_bytes=96 << 10)
    assert (filled / "state.mdb").read_bytes() == before


def test_a_checkpoint_without_its_sum_is_damaged(filled: Path) -> None:
    with lmdb.open(str(filled / "state.mdb"), subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
        assert txn.delete(msgspec.msgpack.encode(["sum"]))
    assert any("rows are missing" in line for line in check_directory(filled).findings)


# ---- segments -----------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [0, -1])
def test_a_damaged_index_is_made_anew_from_the_entries(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture, number: int
) -> None:
    file = segments(filled)[number]
    data = file.read_bytes()
    rows = [page for page in pages_of(file, 2) if len(set(data[page * PAGE + 16 : (page + 1) * PAGE])) > 2]
    index = [page for page in rows if _is_index(file, page)]
    changed = bytearray(data)
    for page in index:
        changed[page * PAGE + 10] ^= 0x40  # its flags
    file.write_bytes(changed)
    assert any(line.startswith(f"{file.name}: it cannot be read: ") for line in check_directory(filled).findings)
    with caplog.at_level(logging.ERROR):
        store = stores.open(segment_bytes=96 << 10)
    assert told(store) == EVERY
    assert any("a damaged segment was rebuilt" in line and "lost=nothing" in line for line in caplog.messages)
    store.append("t", 0, b"more-")
    store.close()
    assert check_directory(filled).findings == []


def _is_index(file: Path, page: int) -> bool:
    """Tell whether a leaf has keys of 20 bytes, as index rows have."""
    data = file.read_bytes()[page * PAGE : (page + 1) * PAGE]
    first = int.from_bytes(data[16:18], "little")
    return int.from_bytes(data[first + 6 : first + 8], "little") == 20


def test_what_cannot_be_read_of_an_old_segment_is_named_and_the_rest_is_served(
    stores: Stores, filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = segments(filled)[1]
    data = bytearray(file.read_bytes())
    for leaf in pages_of(file, 2):  # some are free by now
        for at in range(16, int.from_bytes(data[leaf * PAGE + 12 :][:2], "little"), 2):
            node = leaf * PAGE + int.from_bytes(data[leaf * PAGE + at :][:2], "little")
            if _key_bytes(data, leaf) == 8 and data[node + 4] & 1 and at > 16:
                data[node + 8 + 8 + 6] ^= 0x40  # of the number of the page of its value
                break
    file.write_bytes(data)
    with caplog.at_level(logging.ERROR):
        store = stores.open(segment_bytes=96 << 10)
    [line] = [line for line in caplog.messages if "a damaged segment was rebuilt" in line]
    assert "lost=log positions" in line
    assert list((filled / "commitlog").glob("*.damaged-1"))
    seen: list[str] = []
    errors: list[str] = []
    for queue in range(2):
        offset = 0
        while offset < store.state.end(store.key("t", queue)).offset:
            try:
                for stored in store.read("t", queue, offset, 1):
                    seen += [body.split(b"-")[0].decode() for body in RecordBatch(stored.data).bodies()]
                    offset = stored.base_offset + stored.count
            except CorruptEntry as error:
                errors.append(error.message)
                offset += 1
    assert len(errors) == 1
    assert "go on from offset " in errors[0]
    assert errors[0].startswith(f"{file.name}: offsets ")  # and not the sound one behind it
    assert "of topic t are missing" in errors[0]
    store.close()
    assert any("of topic t goes on at offset" in finding for finding in check_directory(filled).findings)
    assert len(seen) == 23
    assert set(seen) < {str(number) for number in range(24)}


def _key_bytes(data: bytes | bytearray, page: int) -> int:
    first = int.from_bytes(data[page * PAGE + 16 :][:2], "little")
    return int.from_bytes(data[page * PAGE + first + 6 :][:2], "little")


def test_the_last_segment_is_rejected_when_some_of_it_is_lost(stores: Stores, filled: Path) -> None:
    file = segments(filled)[-1]
    data = bytearray(file.read_bytes())
    for page in pages_of(file, 2):
        if _key_bytes(data, page) == 8:
            data[page * PAGE] ^= 1  # its number
    file.write_bytes(data)
    with pytest.raises(DamagedFile, match=rf"{file.name} is damaged: .*where another page is"):
        stores.open(segment_bytes=96 << 10)
    assert file.read_bytes() == data


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
    store = stores.open(segment_bytes=96 << 10)
    for queue, offset in ((0, 1), (1, 0)):
        with pytest.raises(CorruptEntry, match="where another entry is"):
            store.read("t", queue, offset, 1)
    assert any(line.startswith(file.name) for line in check_directory_of(store))


def check_directory_of(store: OpenStore) -> list[str]:
    store.close()
    return check_directory(store.path).findings


@pytest.mark.parametrize("place", [0, 9, 19, 25, 41])
def test_a_flipped_bit_in_an_index_row_is_a_named_error(stores: Stores, filled: Path, place: int) -> None:
    file = segments(filled)[0]
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
    assert any("index row" in line for line in check_directory(filled).findings)


# ---- decisions, the owner -----------------------------------------------------------------------


def decided(folder: Path, names: int) -> None:
    file = DecisionFile(folder)
    for number in range(names):
        record = found(report(broker_name=f"broker-{number}"), 3.0)
        assert record is not None
        file.save(record)
    file.close()


@pytest.mark.parametrize("harm", ["in_sync", "row", "empty", "cut"])
def test_a_changed_decision_is_not_believed(tmp_path: Path, harm: str) -> None:
    decided(tmp_path, 3)
    file = tmp_path / "decisions.mdb"
    if harm == "in_sync":
        data = file.read_bytes()
        at = data.rindex(b'"in_sync":[') + len(b'"in_sync":[')
        file.write_bytes(data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :])
        changed = file.read_bytes()
        assert changed != data
        file.write_bytes(data.replace(b'"in_sync":[' + data[at : at + 1], b'"in_sync":[' + bytes([data[at] ^ 1])))
    elif harm == "row":
        with lmdb.open(str(file), subdir=False, map_size=1 << 26) as env, env.begin(write=True) as txn:
            assert txn.delete(next(key for key, _ in txn.cursor() if b"broker-1" in key))
    else:
        os.truncate(file, 0 if harm == "empty" else 2 * PAGE + 100)
    with pytest.raises(StoreError, match=r"decisions\.mdb cannot be read: .*move it away while the brokers run"):
        DecisionFile(tmp_path)


def test_a_flipped_bit_in_the_owner_is_named(stores: Stores, filled: Path) -> None:
    owner = Owner("cluster", "broker-a", 1)
    DataDirectory(filled, create=True, owner=owner).close()
    text = (filled / "owner").read_text()
    assert check_directory(filled).findings == []
    (filled / "owner").write_text(text.replace('"id": 1', '"id": 3'))
    assert any("does not match its CRC-32C" in line for line in check_directory(filled).findings)
    with pytest.raises(StoreError, match=r"owner.* does not match its CRC-32C"):
        DataDirectory(filled, create=True, owner=owner)


# ---- at random ----------------------------------------------------------------------------------


def test_damage_of_any_kind_is_named_or_harmless(stores: Stores, filled: Path, tmp_path: Path) -> None:
    """Flips, cuts and swapped pages, each looked at by a process of its own, since a crash would end that one."""
    rng = random.Random(SEED)
    files = [*segments(filled), filled / "state.mdb"]
    whole = tmp_path / "whole"
    shutil.copytree(filled, whole)
    for case in range(50):
        file = rng.choice(files)
        size = file.stat().st_size
        kind = rng.choice(("flip", "flip", "flip", "cut", "swap"))
        if kind == "flip":
            with file.open("r+b") as opened:
                # Half of them where the structure of the file is.
                at = (
                    rng.randrange(size)
                    if rng.random() < 0.5
                    else rng.randrange(size // PAGE) * PAGE + rng.randrange(160)
                )
                opened.seek(at)
                [byte] = opened.read(1)
                opened.seek(at)
                opened.write(bytes([byte ^ 1 << rng.randrange(8)]))
        elif kind == "cut":
            os.truncate(file, rng.randrange(size))
        else:
            swap(file, rng.randrange(size // PAGE), rng.randrange(size // PAGE))
        named = _outcome(filled)
        assert named in ("whole", "named"), f"case {case}: {kind} in {file.name}: {named}"
        shutil.rmtree(filled)
        shutil.copytree(whole, filled)


def _outcome(path: Path) -> str:
    """Return what comes of opening and reading a directory in a process of its own: "whole", "named", or an error."""
    child = os.fork()
    if child == 0:
        status = 2
        try:
            logging.disable(logging.CRITICAL)
            status = _read_all(path)
        except Exception:  # noqa: BLE001 - it must not go on as a test
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        return signal.Signals(os.WTERMSIG(status)).name
    return ("whole", "named", "an unexpected error", "other messages")[os.waitstatus_to_exitcode(status)]


def _read_all(path: Path) -> int:
    try:
        findings = check_directory(path).findings
    except MinimqError:
        findings = ["named"]
    stores = Stores(path.parent)
    try:
        store = stores.open(path.name, segment_bytes=96 << 10)
    except MinimqError:
        return 1
    seen: list[list[str]] = []
    is_named = False
    for queue in range(2):
        seen.append([])
        offset = 0
        while offset < store.state.end(store.key("t", queue)).offset:
            try:
                [stored] = store.read("t", queue, offset, 1)
                seen[-1] += [body.split(b"-")[0].decode() for body in RecordBatch(stored.data).bodies()]
                offset = stored.base_offset + stored.count
            except MinimqError:
                is_named = True
                offset += 1
    offsets = told_offsets(store)
    if not all(set(part) <= set(every) for part, every in zip(seen, EVERY[0], strict=True)) or offsets != EVERY[1]:
        return 3
    if is_named:
        return 1 if findings else 3
    return 0 if seen == EVERY[0] else 3


def told_offsets(store: OpenStore) -> list[int | None]:
    return [store.state.offset(f"group-{number:02d}", store.key("t", 0)) for number in range(GROUPS)]


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
