"""The rebuild of a damaged segment file from its readable entries, before LMDB opens it."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from pathlib import Path

import lmdb

from minimq_broker.log.disk import no_room
from minimq_broker.log.entry import read_header
from minimq_broker.log.lmdb_file import DamagedFile, DamagedPages, check_pages_of, free_name, lock_file, remove_lmdb
from minimq_broker.log.segment import LOG_TABLE, Segment, mark_in, rows_of
from minimq_common.errors import CorruptEntry
from minimq_common.files.lmdb_pages import PageDamage, rows_in, rows_said_in, sync_directory
from minimq_common.text_units import count_of

log = logging.getLogger(__name__)

_POSITION_BYTES = 8
#: Beyond every segment.
NOTHING_VERIFIED = 1 << 63
_BYTES_PER_TRANSACTION = 8 << 20
_MAX_LISTED_GAPS = 5


def repair_at_start(files: list[Path], segment_bytes: int, verify_s: float) -> tuple[dict[int, str], int]:
    """Verify the last segment and, for `verify_s` seconds, earlier ones; rebuild those that are damaged.

    Returns what is lost, by segment, and the start of the first verified segment. Must run before any is opened.
    """
    lost: dict[int, str] = {}
    verified_from = NOTHING_VERIFIED
    until = time.monotonic() + verify_s
    end: int | None = None
    for file in reversed(files):
        if end is not None and time.monotonic() > until:
            break
        try:
            check_pages_of(file)
        except DamagedPages as error:
            if missing := repair_segment(file, end, segment_bytes, error.reason):
                lost[int(file.stem)] = f"lost: {missing}"
        verified_from = end = int(file.stem)
    return lost, verified_from


def repair_segment(path: Path, end: int | None, segment_bytes: int, damage: str) -> str:
    """Rebuild a segment from its readable entries, with new index rows; return what is lost, "" if nothing."""
    rejected = DamagedFile(f"{path} is damaged: {damage}: restore the data directory from a copy of it")
    start, rewritten_to = int(path.stem), mark_in(path)
    try:
        found = sorted((position, len(entry)) for position, entry in _entries(path))
        kept = _apart(found, start, rewritten_to) if rewritten_to else _linked(found, start, end)
        said = rows_said_in(path, LOG_TABLE)
        is_whole = len(kept) == said
    except PageDamage:
        raise rejected from None
    if rewritten_to:
        lost = "" if is_whole else f"{said - len(kept)} of {count_of(said, 'entry', 'entries')}"
    else:
        lost = _missing(kept, start, end)
    if end is None and (lost or not is_whole):
        raise rejected
    made = path.with_name(f"{path.stem}.new")
    aside: Path | None = None
    try:
        remove_lmdb(made)
        _copy(path, made, dict(kept), segment_bytes, rewritten_to)
        if lost:
            aside = free_name(path)
            aside.hardlink_to(path)
        lock_file(path).unlink(missing_ok=True)
        made.replace(path)
        remove_lmdb(made)
        sync_directory(path.parent)
    except (OSError, lmdb.Error) as error:
        raise no_room(error, path.parent, path) or error from None
    log.error(
        "store: a damaged segment was rebuilt segment=%d reason=%s lost=%s former=%s",
        start,
        damage,
        lost or "nothing",
        aside or "deleted",
    )
    return lost


def _entries(path: Path) -> Iterator[tuple[int, bytes]]:
    for key, entry in rows_in(path, LOG_TABLE):
        if len(key) == _POSITION_BYTES:
            position = int.from_bytes(key, "big")
            try:
                read_header(memoryview(entry), position)
            except CorruptEntry:
                continue
            yield position, entry


def _linked(found: list[tuple[int, int]], start: int, end: int | None) -> list[tuple[int, int]]:
    begins = {start if end is None else end, *(position for position, _ in found)}
    ends = {start, *(position + size for position, size in found)}
    kept: list[tuple[int, int]] = []
    at = start
    for position, size in found:
        if position >= at and (position in ends or position + size in begins):
            kept.append((position, size))
            at = position + size
    return kept


def _apart(found: list[tuple[int, int]], start: int, end: int) -> list[tuple[int, int]]:
    kept: list[tuple[int, int]] = []
    at = start
    for position, size in found:
        if at <= position and position + size <= end:
            kept.append((position, size))
            at = position + size
    return kept


def _missing(kept: list[tuple[int, int]], start: int, end: int | None) -> str:
    gaps: list[str] = []
    at = start
    for position, size in [*kept, *([] if end is None else [(end, 0)])]:
        if position != at:
            gaps.append(f"{at} to {position}")
        at = position + size
    more = f" and {len(gaps) - _MAX_LISTED_GAPS} more" if len(gaps) > _MAX_LISTED_GAPS else ""
    return f"log positions {', '.join(gaps[:_MAX_LISTED_GAPS])}{more}" if gaps else ""


def _copy(path: Path, made: Path, kept: dict[int, int], segment_bytes: int, rewritten_to: int) -> None:
    segment = Segment(made, int(path.stem), segment_bytes)
    try:
        entries: list[tuple[int, bytes]] = []
        size = 0
        for position, entry in _entries(path):
            if kept.get(position) != len(entry):
                continue
            entries.append((position, entry))
            size += len(entry)
            if size >= _BYTES_PER_TRANSACTION:
                segment.write(sorted(entries), *rows_of(entries, verified=True))
                entries, size = [], 0
        segment.write(sorted(entries), *rows_of(entries, verified=True))
        if rewritten_to:
            segment.mark_rewritten(rewritten_to)
    finally:
        segment.close()
