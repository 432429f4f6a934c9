"""Verifies the files of a log at a start, before LMDB opens them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from minimq_broker.log.disk import no_room
from minimq_broker.log.file_checksum import has_checksum, remove_checksum, verify_checksum, was_damaged
from minimq_broker.log.lmdb_file import unusable
from minimq_broker.log.page_walk import PageDamage, unreadable

log = logging.getLogger(__name__)

#: What to do about a damaged sealed segment.
REMEDY = (
    "a slave copies everything from its master by itself; with replicas, promote another one (minimq cluster promote); "
    "alone, restore a backup if the rest is not enough"
)


def check_at_start(files: list[Path], verify_s: float) -> tuple[list[Path], dict[int, str]]:
    """Verify the files of a log: those without a checksum or found damaged before, and others for `verify_s` seconds.

    Returns the readable files, and the damage by the start of the segment: a damaged one is served as far as its rows
    match their checksums, unless its pages cannot be read. Raises `DamagedFile` if that is the last one, which is
    written.
    """
    if not files:
        return [], {}
    *sealed, active = files
    remove_checksum(active)  # it was sealed if a crash interrupted a truncation
    if error := damaged([active]).get(active):
        raise no_room(error, active.parent) or unusable(active, error)
    found = _check_sealed(sealed, time.monotonic() + verify_s)
    closed = not_readable(found)
    for file, reason in found.items():
        served = "not served" if file in closed else "served as far as it is readable"
        log.error("store: a segment is damaged, and %s file=%s reason=%s: %s", served, file, reason, REMEDY)
    readable = [file for file in files if file not in closed]
    return readable, {int(file.stem): str(reason) for file, reason in found.items()}


def _check_sealed(files: Sequence[Path], until: float) -> dict[Path, Exception]:
    suspects = [file for file in files if not has_checksum(file) or was_damaged(file)]
    found = damaged(suspects)
    for file in reversed(files):
        if file not in suspects and time.monotonic() <= until:
            found |= damaged([file])
    return found


def damaged(files: Sequence[Path]) -> dict[Path, Exception]:
    """Return how files are damaged, by their checksums or, without one, by their pages."""
    found: dict[Path, Exception] = {**unreadable([file for file in files if not has_checksum(file)])}
    for file in files:
        try:
            for _ in verify_checksum(file):
                pass
        except (PageDamage, OSError) as error:
            found[file] = error
    return found


def not_readable(found: Mapping[Path, Exception]) -> set[Path]:
    """Return those of the `damaged` files whose pages cannot be read."""
    return {file for file in found if not has_checksum(file)} | {*unreadable([*filter(has_checksum, found)])}
