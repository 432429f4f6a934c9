"""The position at which a log begins, kept beside its segments: a start, and `check`, know when the first are missing.

It is recorded ahead of each deletion, so that it is never behind the first segment but when another has deleted that.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import google_crc32c

from minimq_common.errors import StoreError

log = logging.getLogger(__name__)

#: In the directory of the segments: 20 digits and their checksum, always of one size.
FILE_NAME = "first"
_MAX_BYTES = 64


def missing_before(folder: Path, start: int) -> str:
    """Say what is missing ahead of the first segment, which begins at `start`; "" when nothing is, or nobody knows."""
    recorded = _read(folder)
    if recorded is None or start <= recorded:
        return ""
    return f"log positions {recorded} to {start} are missing: the segments that held them were deleted or moved away"


def look_and_keep(folder: Path, start: int) -> str:
    """Say what is missing, as `missing_before` does, or if nothing is, record where the log begins."""
    try:
        if missing := missing_before(folder, start):
            log.error(
                "store: %s path=%s: put them back, or restore the data directory from a copy; if there are other "
                "replicas, use minimq-broker rebuild",
                missing,
                folder,
            )
            return missing
        if _read(folder) == start:
            return ""
    except StoreError as error:
        log.warning("store: recorded anew where the log begins: %s", error.message)
    keep(folder, start)
    return ""


def keep(folder: Path, start: int) -> None:
    """Record where a log begins, synced. When it cannot be, there is no record: nobody is told of what is not so."""
    path = folder / FILE_NAME
    try:
        # Over what it holds: that needs no space on a full disk, where old segments have to go.
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(file, _text(start), 0)
            os.fsync(file)
        finally:
            os.close(file)
    except OSError as error:
        log.debug("store: not recorded where the log begins path=%s error=%s", path, error)
        with suppress(OSError):
            path.unlink()


def _read(folder: Path) -> int | None:
    path = folder / FILE_NAME
    try:
        with path.open("rb") as file:
            found = file.read(_MAX_BYTES)
        digits = found[:20]
        if not digits.isdigit() or found != _text(int(digits)):
            raise StoreError(f"{path}, which says where the log begins, does not match its CRC-32C")
    except FileNotFoundError:
        return None
    except OSError as error:
        raise StoreError(f"{path}, which says where the log begins, cannot be read: {error}") from None
    return int(digits)


def _text(start: int) -> bytes:
    digits = b"%020d" % start
    return b"%s %08x\n" % (digits, google_crc32c.value(digits))
