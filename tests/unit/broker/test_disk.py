"""The disk of a broker: what is said of how full it is, and what counts as full."""

from __future__ import annotations

import errno
import logging
from pathlib import Path

import lmdb
import pytest

from minimq_broker.core.upkeep.disk import DiskLevel, Watermarks
from minimq_broker.store.disk import Disk, is_full
from minimq_common.errors import StoreError, StoreFull
from support.disks import disk_of


def test_a_watermark_that_is_reached_or_left_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    risen: list[DiskLevel] = []
    with disk_of(tmp_path / "disk", "1m") as path:
        marks = Watermarks(warn=0.5, delete_early=0.7, refuse=0.9)
        disk = Disk(path, marks, lambda: risen.append(disk.latest[1]))
        for used in (0, 600_000, 600_000, 1_000_000, 0):
            (path / "file").write_bytes(bytes(used))
            disk.look()
    said = [(record.levelname, record.getMessage().rpartition(" ")[2]) for record in caplog.records]
    assert said == [("WARNING", "level=warn"), ("WARNING", "level=refuse"), ("INFO", "level=normal")]
    assert risen == [DiskLevel.WARN, DiskLevel.REFUSE]


def test_what_counts_as_full(tmp_path: Path) -> None:
    for full in (OSError(errno.ENOSPC, ""), OSError(errno.EDQUOT, ""), lmdb.DiskError(""), StoreFull("")):
        assert is_full(full, tmp_path)
    for other in (OSError(errno.EIO, ""), lmdb.MapFullError(""), lmdb.CorruptedError(""), StoreError("")):
        assert not is_full(other, tmp_path)
    half_written = lmdb.Error("mdb_txn_commit: Input/output error")
    with disk_of(tmp_path / "small", "1m") as small, disk_of(tmp_path / "large", "64m") as large:
        assert is_full(half_written, small)
        assert not is_full(half_written, large)
        assert not is_full(lmdb.CorruptedError(""), small)
