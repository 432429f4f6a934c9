"""The disk of a broker: its watermarks, and the errors that mean that there is no room."""

from __future__ import annotations

import errno
import logging
import os
import resource
from pathlib import Path

import lmdb
import pytest

from minimq_broker.log.disk import Disk, no_room
from minimq_broker.log.disk_levels import DiskLevel, Watermarks
from minimq_common.errors import StoreFull
from support.disks import disk_of


def test_a_watermark_that_is_reached_or_left_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    risen: list[DiskLevel] = []
    with disk_of(tmp_path / "disk", "1m") as path:
        marks = Watermarks(delete_early=0.6, reject=0.9)
        disk = Disk(path, marks, lambda: risen.append(disk.latest[1]))
        for used in (0, 600_000, 600_000, 1_000_000, 0):
            (path / "file").write_bytes(bytes(used))
            disk.look()
    said = [(record.levelname, record.getMessage().rpartition(" ")[2]) for record in caplog.records]
    assert said == [("WARNING", "level=warn"), ("WARNING", "level=reject"), ("INFO", "level=normal")]
    assert risen == [DiskLevel.WARN, DiskLevel.REJECT]


def test_the_cause_of_a_partial_write_is_found(tmp_path: Path) -> None:
    partial = lmdb_error(errno.EIO)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    with disk_of(tmp_path / "small", "1m") as small, disk_of(tmp_path / "large", "64m") as large:
        assert "the disk of the broker is full" in message_of(no_room(partial, small))
        assert no_room(partial, large) is None
        (large / "file").write_bytes(bytes(1 << 20))
        try:
            resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, hard))
            rejection = no_room(partial, large)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        assert "the file-size limit" in message_of(rejection)


def lmdb_error(code: int) -> lmdb.Error:
    return lmdb.Error(f"mdb_txn_commit: {os.strerror(code)}")


def message_of(error: StoreFull | None) -> str:
    return "" if error is None else error.message
