"""The record of the clock for the deletion of old data: with it the next start knows whether the clock has jumped."""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path

import google_crc32c

from minimq_common.errors import StoreError

log = logging.getLogger(__name__)

#: In the data directory: the parts of a record, then the checksum of all that.
FILE_NAME = "clock"
_MAX_BYTES = 256


@dataclass(frozen=True, slots=True)
class ClockRecord:
    """The latest recorded time."""

    time_ms: int
    #: The steady clock at that time, in seconds.
    steady_s: float
    #: The start of the machine that the steady clock counts from; empty when that is not known.
    boot_id: str
    idle_ms: int = 0


def load(path: Path) -> ClockRecord | None:
    """Return the content of a file; None when there is none."""
    try:
        with path.open("rb") as file:
            text, _, crc = file.read(_MAX_BYTES).rpartition(b" ")
        if crc != b"%08x" % google_crc32c.value(text):
            raise StoreError(f"{path}, which says what time it was, does not match its CRC-32C")
        time_ms, steady_s, boot_id, *idle_ms = text.decode("ascii").split(" ")
        return ClockRecord(int(time_ms), float(steady_s), "" if boot_id == "-" else boot_id, *map(int, idle_ms[:1]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StoreError(f"{path}, which says what time it was, cannot be read: {error}") from None


def save(path: Path, record: ClockRecord) -> None:
    """Write a record in place of the former one. When it cannot be written, the next start knows less."""
    text = f"{record.time_ms} {record.steady_s:.3f} {record.boot_id or '-'} {record.idle_ms}".encode("ascii")
    new = path.with_name(f"{path.name}.new")
    try:
        new.write_bytes(b"%s %08x" % (text, google_crc32c.value(text)))
        new.replace(path)
    except OSError as error:  # on a full disk, for one
        log.debug("clock: not kept path=%s error=%s", path, error)
        with contextlib.suppress(OSError):
            new.unlink()
