"""The files of the segments in a directory."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from contextlib import suppress
from pathlib import Path

from minimq_broker.store.lmdb_file import open_lmdb, remove_lmdb
from minimq_broker.store.segment import Segment
from minimq_common.errors import StoreError

#: Address space for a look at a file, beyond its size.
_MAP_BYTES = 1 << 20


def segment_files(path: Path, *, readonly: bool, without: Collection[str] = ()) -> list[Path]:
    """Return the files of all segments in order, but for some. Raises `StoreError`: one has another name."""
    files = sorted(file for file in path.glob("*.mdb") if file.name not in without)
    for file in files:
        if not is_segment(file):
            raise StoreError(
                f"{file} is not named like a segment, whose name is a log position of 20 digits: move it away"
            )
    if readonly and files and not is_begun(files[-1]):
        files.pop()  # its making was interrupted: the writer goes on with that, a reader finds nothing to read
    return files


def without_replaced(segments: Iterable[Segment], *, readonly: bool) -> list[Segment]:
    """Return the segments but those that a rewritten one has replaced: their deletion was interrupted.

    They are closed, and deleted unless `readonly`.
    """
    kept: list[Segment] = []
    for segment in segments:
        if not kept or segment.start >= kept[-1].rewritten_to:
            kept.append(segment)
            continue
        segment.close()
        if not readonly:
            remove_lmdb(segment.path)
    return kept


def is_segment(path: Path) -> bool:
    """Return whether a file is named like a segment."""
    return re.fullmatch(r"[0-9]{20}\.mdb", path.name) is not None


def total_bytes(segments: Iterable[Segment]) -> int:
    """Return how much disk segments use; one that is removed meanwhile counts for nothing."""
    size = 0
    for segment in segments:
        with suppress(FileNotFoundError):
            size += segment.path.stat().st_size
    return size


def is_begun(path: Path) -> bool:
    """Return whether a file has the tables of a segment; one whose creation was interrupted does not."""
    if path.stat().st_size == 0:
        return False
    env = open_lmdb(path, map_bytes=_MAP_BYTES, readonly=True)
    try:
        return int(env.stat()["entries"]) > 0
    finally:
        env.close()
