"""Disks for tests: one that is full, and one that fails."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_SOURCE = Path(__file__).with_name("failing_disk.c")


@contextmanager
def disk_of(path: Path, size: str) -> Iterator[Path]:
    """Mount a file system of a size at a new directory; skips the test where that is not allowed.

    Watermarks are off in a `LocalCluster`, unless a test sets them.
    """
    path.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(path)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"may not mount a file system: {mounted.stderr.strip()}")
    try:
        yield path
    finally:
        subprocess.run(["umount", "--lazy", str(path)], check=True)


def fill_up(disk: Path, free_pages: int = 0) -> Path:
    """Leave a file system of `disk_of` so many free pages. Returns the file that takes all others."""
    reserve = disk / "reserve"
    reserve.touch()
    with reserve.open("r+b", buffering=0) as file, contextlib.suppress(OSError):
        file.seek(0, os.SEEK_END)
        while True:
            file.write(bytes(_PAGE_BYTES))
    about = os.statvfs(disk)
    assert about.f_bavail * about.f_frsize < _PAGE_BYTES
    os.truncate(reserve, reserve.stat().st_size - free_pages * _PAGE_BYTES)
    return reserve


def failing_syncs(folder: Path) -> dict[str, str]:
    """Return the environment for brokers whose syncs can be made to fail or hang; see `FailingDisk`."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("a disk that fails takes a C compiler")
    library = folder / "failing_disk.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)], check=True)
    return {"LD_PRELOAD": str(library)}


class FailingDisk:
    """Decides whether the syncs of a CommitLog fail or hang.

    Args:
        data_dir: of a broker that was started with `failing_syncs`.
    """

    def __init__(self, data_dir: Path) -> None:
        self._signal = data_dir / "fail-sync"
        self._hang = data_dir / "hang-sync"

    @property
    def failures(self) -> int:
        """The number of syncs that have failed since `fail`."""
        return self._signal.stat().st_size

    def fail(self) -> None:
        self._signal.touch()

    def hang(self) -> None:
        self._hang.touch()

    def work(self) -> None:
        for signal in (self._signal, self._hang):
            signal.unlink(missing_ok=True)
