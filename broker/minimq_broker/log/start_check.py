"""Verifies the files of a log at a start, before LMDB opens them."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from minimq_broker.backup.log_marks import DamageMarks
from minimq_broker.log.disk import no_room
from minimq_broker.log.file_checksum import has_checksum, remove_checksum, verify_checksum
from minimq_broker.log.lmdb_file import unusable
from minimq_broker.log.page_walk import PageDamage, unreadable

log = logging.getLogger(__name__)

#: What to do about a damaged sealed segment.
REMEDY = (
    "a slave copies everything from its master by itself; with replicas, promote another one (minimq cluster promote); "
    "alone, restore a backup if the rest is not enough"
)


def check_at_start(files: list[Path], marks: DamageMarks, verify_s: float) -> list[Path]:
    """Verify the files of a log: those without a checksum, marked ones, and others for `verify_s` seconds.

    Marks damaged ones. Returns the readable files: a damaged one is served as far as its rows match their checksums,
    unless its pages cannot be read. Raises `DamagedFile` if that is the last one, which is written.
    """
    if not files:
        return files
    *sealed, active = files
    remove_checksum(active)  # it was sealed if a crash interrupted a truncation
    if error := damaged([active]).get(active):
        raise no_room(error, active.parent) or unusable(active, error)
    found = _check_sealed(sealed, marks, time.monotonic() + verify_s)
    closed = not_readable(found)
    for file, reason in found.items():
        marks.add(int(file.stem), str(reason))
        served = "not served" if file in closed else "served as far as it is readable"
        log.error("store: a segment is damaged, and %s file=%s reason=%s: %s", served, file, reason, REMEDY)
    return [file for file in files if file not in closed]


def _check_sealed(files: Sequence[Path], marks: DamageMarks, until: float) -> dict[Path, Exception]:
    unsealed = [file for file in files if not has_checksum(file)]
    suspects = [file for file in files if file in unsealed or int(file.stem) in marks.reasons]
    found = damaged(suspects)
    for file in reversed(files):
        if file not in suspects and time.monotonic() <= until:
            found |= damaged([file])
    for sound in marks.reasons.keys() - {int(file.stem) for file in (*found, *unsealed)}:  # or gone
        marks.discard(sound)
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
