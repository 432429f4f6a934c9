"""LMDB files on a disk that is full: what is made is made whole, or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minimq_broker.log.lmdb_file import open_lmdb
from minimq_common.errors import StoreFull
from support.disks import disk_of, fill_up


@pytest.mark.parametrize("before", [None, 0, 4096, 7808, 8192, 16384])
def test_all_of_a_lock_file_is_on_the_disk(tmp_path: Path, before: int | None) -> None:
    """LMDB writes to it through memory: where the disk has no room for that, it is the end of the process."""
    file, lock = tmp_path / "a.mdb", tmp_path / "a.mdb-lock"
    open_lmdb(file, map_bytes=1 << 20, readonly=False).close()
    lock.unlink()
    if before is not None:  # as it was made by size alone
        lock.touch()
        os.truncate(lock, before)
    env = open_lmdb(file, map_bytes=1 << 20, readonly=False)
    about = lock.stat()
    assert about.st_blocks * 512 >= about.st_size >= max(before or 0, 8192)
    assert env.info()["max_readers"] >= 120
    env.close()


def test_without_space_nothing_is_made(tmp_path: Path) -> None:
    with disk_of(tmp_path / "disk", "1m") as disk:
        for free_pages in range(4):
            fill_up(disk, free_pages)
            with pytest.raises(StoreFull, match="the disk of the broker is full "):
                open_lmdb(disk / "a.mdb", map_bytes=1 << 20, readonly=False)
            assert [file.name for file in disk.iterdir()] == ["reserve"]
        (disk / "reserve").unlink()
        open_lmdb(disk / "a.mdb", map_bytes=1 << 20, readonly=False).close()
        fill_up(disk)
        open_lmdb(disk / "a.mdb", map_bytes=1 << 20, readonly=False).close()


def test_a_map_that_is_too_large_is_not_taken_for_damage(tmp_path: Path) -> None:
    with pytest.raises(StoreFull, match="cannot map another file into memory"):
        open_lmdb(tmp_path / "a.mdb", map_bytes=1 << 60, readonly=False)
