"""Files that survive a power failure: written and synced before the caller continues."""

from __future__ import annotations

import os
from pathlib import Path


def write_whole(path: Path, data: bytes) -> None:
    """Replace a small file atomically, and sync. Raises `OSError`."""
    made = path.with_name(f"{path.name}.new")
    with made.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    made.rename(path)
    sync_directory(path.parent)


def sync_directory(path: Path) -> None:
    """Sync a directory, so that new and removed names survive a power failure."""
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
