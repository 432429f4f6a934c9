"""Damaged data directories: found, named, and survived; whatever can still be read is read."""

from __future__ import annotations

import os
import re
import shutil
from contextlib import closing
from pathlib import Path
from typing import cast

import lmdb
import msgspec
import pytest
from click.testing import CliRunner, Result

from minimq_broker.__main__ import main
from minimq_broker.backup.check import check_directory
from minimq_broker.log.checkpoint import ChangedRows, Checkpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory, Owner
from minimq_broker.log.entry import fact_entry
from minimq_broker.log.file_checksum import make_checksum
from minimq_broker.log.sealed_rows import seal
from minimq_broker.state.facts import CommittedOffset, Fact, OffsetsCommitted
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, CorruptEntry, DataDirectoryInUse, DataDirectoryVersion, StoreError
from support.checking import findings_of
from support.kernel_stores import OpenStore, Stores

SEGMENT = f"{0:020d}.mdb"


def command(*args: str | Path) -> Result:
    """Run minimq-broker."""
    return CliRunner().invoke(main, [str(each) for each in args], prog_name="minimq-broker")


def flip(file: Path, needle: bytes, at: int = 0) -> None:
    """Flip a bit of some bytes, wherever a file holds them: also in pages that were copied and are free now."""
    data = file.read_bytes()
    assert needle in data
    changed = bytearray(needle)
    changed[at] ^= 0x10
    file.write_bytes(data.replace(needle, bytes(changed)))


@pytest.fixture
def filled(stores: Stores) -> Path:
    """A data directory, closed: topic "t" with offsets 0 to 9 in five batches, then one committed offset."""
    store = stores.open()
    store.create_topic("t", 2)
    for number in range(5):
        store.append("t", 0, b"first-%d" % number, b"second-%d" % number)
    store.record(OffsetsCommitted("some-group", (CommittedOffset(*store.key("t", 0), 4),)))
    store.close()
    stores.damaged.add(store.path)
    return store.path


def positions(path: Path) -> list[int]:
    """Return where the entries of a directory begin."""
    with closing(CommitLog(path / "commitlog", 0, readonly=True)) as log:
        return [position for position, _ in log.entries()]


# ---- one bit ------------------------------------------------------------------------------------


def test_a_flipped_bit_in_a_body_is_found_and_the_rest_is_readable(stores: Stores, filled: Path) -> None:
    position = positions(filled)[2 + 3]  # behind the term and the topic
    flip(filled / "commitlog" / SEGMENT, b"second-3")

    [finding] = findings_of(filled)
    assert finding.startswith(f"{SEGMENT}: position {position}: a batch of ")
    store = stores.open()
    for stored in store.read("t", 0, 0):
        if stored.position == position:
            with pytest.raises(CorruptBatch):
                RecordBatch(stored.data)
        else:
            RecordBatch(stored.data)
    assert store.append("t", 0, b"more") == 10
    assert store.bodies("t", 0, 8) == [b"first-4", b"second-4", b"more"]


def test_a_damaged_fact_that_recovery_needs_is_a_named_error(stores: Stores, filled: Path) -> None:
    (filled / "state.mdb").unlink()  # as if there never was a checkpoint
    flip(filled / "commitlog" / SEGMENT, b"some-group")
    with pytest.raises(CorruptEntry, match=r"position \d+ does not match its CRC-32C"):
        stores.open()


class OfTomorrow(msgspec.Struct, frozen=True, tag="of-tomorrow"):
    """A fact of a release that does not exist yet."""

    number: int


def test_a_fact_of_a_newer_release_is_a_named_error(stores: Stores) -> None:
    store = stores.open()
    store.create_topic("t", 1)
    store.close()
    with closing(CommitLog(store.path / "commitlog", 1 << 20)) as log:
        log.append(log.end, [(log.end, fact_entry(cast("Fact", OfTomorrow(7)), 0))], [])
    stores.damaged.add(store.path)
    (store.path / "state.mdb").unlink()
    text = r"entry at position \d+ cannot be read: .*of-tomorrow.*newer release"
    finding, *_ = findings_of(store.path)
    assert re.search(text, finding)
    with pytest.raises(StoreError, match=text):
        stores.open()


def test_a_checkpoint_of_a_newer_release_is_a_named_error(stores: Stores, filled: Path) -> None:
    key = msgspec.msgpack.encode(("calendar", "orders", 7))
    with closing(Checkpoint(filled / "state.mdb")) as checkpoint:
        checkpoint.save(ChangedRows(0, [(key, seal(key, msgspec.msgpack.encode({"days": 3})))]))
    with pytest.raises(StoreError, match=r"state\.mdb: a row of kind 'calendar'.*newer release"):
        stores.open()


# ---- rows and entries ---------------------------------------------------------------------------


def edit(path: Path, table: bytes, *, drop: int | None = None, change: int | None = None) -> None:
    """Delete or change the row of that number in a table of the first segment."""
    environment = lmdb.open(str(path / "commitlog" / SEGMENT), subdir=False, max_dbs=2, map_size=1 << 30)
    with environment.begin(environment.open_db(table), write=True) as txn:
        every = list(txn.cursor())
        if drop is not None:
            txn.delete(every[drop][0])
        if change is not None:
            key, value = every[change]
            txn.put(key, bytes([value[0] ^ 1]) + value[1:])
    environment.close()


def test_a_lost_index_row_is_found(filled: Path) -> None:
    edit(filled, b"consumequeue", drop=1)
    [finding] = findings_of(filled)
    assert finding.endswith("offset 3 has no index row")


# ---- files that are cut off, missing, mixed -----------------------------------------------------


def test_a_changed_index_row_is_found_and_reading_it_is_a_named_error(stores: Stores, filled: Path) -> None:
    edit(filled, b"consumequeue", change=1)
    findings = findings_of(filled)
    assert any("the index row of queue" in finding and "offset 3 is wrong" in finding for finding in findings)
    store = stores.open()
    with pytest.raises(CorruptEntry, match="minimq-broker check"):
        store.read("t", 0, 2)
    assert store.bodies("t", 0, 4) == [b"first-2", b"second-2", b"first-3", b"second-3", b"first-4", b"second-4"]


def test_a_lost_entry_is_found(filled: Path) -> None:
    lost = positions(filled)[3]
    edit(filled, b"log", drop=3)
    findings = findings_of(filled)
    assert any(f"expected an entry at {lost}" in finding for finding in findings)
    assert any("goes on at offset 4 where 2 was expected" in finding for finding in findings)


def test_a_lost_segment_is_found(stores: Stores) -> None:
    store = stores.open(segment_bytes=96 << 10)
    store.create_topic("t")
    for _ in range(30):
        store.append("t", 0, bytes(20_000))
    store.close()
    stores.damaged.add(store.path)
    segments = sorted((store.path / "commitlog").glob("*.mdb"))
    assert len(segments) > 4
    segments[2].unlink()
    assert any(f"{segments[3].name}: " in finding and "a gap" in finding for finding in findings_of(store.path))


def test_files_of_two_directories_are_a_named_error(stores: Stores, filled: Path) -> None:
    longer = stores.open("longer")
    longer.create_topic("t")
    longer.append("t", 0, bytes(100_000))
    longer.close()
    shutil.copy(longer.path / "state.mdb", filled / "state.mdb")

    with pytest.raises(StoreError, match="mixed, or some are missing; restore them together"):
        stores.open()
    assert any("state.mdb: at position" in finding for finding in findings_of(filled))


@pytest.mark.parametrize("text", ["2", "99", "", "one"])
def test_another_format_is_a_named_error(stores: Stores, filled: Path, text: str) -> None:
    (filled / "format").write_text(text)
    for attempt in (stores.open, lambda: check_directory(filled)):
        with pytest.raises(DataDirectoryVersion, match="this release reads format 7: use the release that wrote it"):
            attempt()


def test_the_directory_of_another_broker_is_rejected_until_its_mark_is_deleted(tmp_path: Path) -> None:
    own = Owner("cluster", "broker-a", 1)

    def open_as(owner: Owner | None) -> None:
        DataDirectory(tmp_path, create=True, owner=owner).close()

    open_as(None)  # as of a snapshot: whoever comes first has it
    for owner in (own, None, own):
        open_as(owner)
    for other in (Owner("cluster", "broker-a", 0), Owner("cluster", "broker-b", 1), Owner("other", "broker-a", 1)):
        with pytest.raises(
            StoreError, match=r"is the data directory of broker-a \(cluster cluster, id 1\), and this is"
        ):
            open_as(other)
    (tmp_path / "owner").write_text("")
    with pytest.raises(StoreError, match="cannot be read"):
        open_as(own)
    (tmp_path / "owner").unlink()
    open_as(Owner("cluster", "broker-a", 0))


def test_a_directory_in_use_is_a_named_error_with_the_process(stores: Stores, store: OpenStore) -> None:
    for attempt in (stores.open, lambda: check_directory(store.path)):
        with pytest.raises(DataDirectoryInUse, match=rf"in use by process {os.getpid()}: stop it first"):
            attempt()
    checked = command("check", store.path)
    assert checked.exit_code == 1
    assert f"in use by process {os.getpid()}" in checked.stderr
    store.append("t", 0, b"undisturbed")


def test_what_is_no_data_directory_is_a_named_error(stores: Stores, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    for name in ("empty", "file", "absent"):
        with pytest.raises(StoreError, match=name):
            check_directory(tmp_path / name)
    assert list((tmp_path / "empty").iterdir()) == []
    assert not (tmp_path / "absent").exists()
    with pytest.raises(StoreError, match="cannot use"):
        stores.open("file")


# ---- the commands -------------------------------------------------------------------------------


def test_check_prints_one_table_of_the_damage_and_what_to_do(stores: Stores) -> None:
    store = stores.open(segment_bytes=64 << 10)
    store.create_topic("t", 1)
    for number in range(10):
        store.append("t", 0, b"body-%d" % number + bytes(12_000))
    store.close()
    stores.damaged.add(store.path)
    path = store.path
    assert command("check", path).stdout.startswith("clean: ")

    first, *_, last = sorted((path / "commitlog").glob("*.mdb"))
    list(make_checksum(first))
    flip(first, b"body-1")
    flip(last, b"body-9")
    (path / "state.mdb").write_bytes(b"")
    (path / "owner").write_text("{}")
    (path / "commitlog" / "foo.mdb").touch()
    done = command("check", path)
    assert done.exit_code == 1
    head, *rows, summary = done.stdout.splitlines()
    assert head.split() == ["file", "position", "what", "is", "damaged", "what", "to", "do"]
    assert summary.startswith("damaged: 6 findings in ")
    found = [re.split(r"  +", row.strip()) for row in rows]
    alone = "replica: minimq-broker rebuild; alone: restore a backup"
    rest = "slave: start it, it copies all from its master; else: the rest is served, or restore a backup"
    assert [(cells[0], cells[-1]) for cells in found] == [
        (first.name, rest),
        ("state.mdb", "start it: the state is rebuilt from the log"),
        ("foo.mdb", "move it away"),
        ("owner", "delete it if the directory belongs to the broker that starts with it"),
        (first.name, rest),
        (last.name, alone),
    ]
    assert "does not match its CRC-32C" in found[0][1]
    assert found[-1][1].isdecimal()  # the position of the entry
    absent = command("check", path / "absent")
    assert (absent.exit_code, absent.stdout) == (1, "")
    assert absent.stderr.startswith("error: ")
