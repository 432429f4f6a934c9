"""The file next to the segments that records how far they are compacted. Without it, compaction starts over."""

from __future__ import annotations

import logging
from pathlib import Path

import google_crc32c
import msgspec

from minimq_broker.features.compaction.compaction_record import CompactionRecord
from minimq_common.files.synced_files import write_whole

log = logging.getLogger(__name__)

COMPACTED = "compacted"
_CRC_BYTES = 4
_MAX_BYTES = 4 << 20


def load_record(folder: Path) -> CompactionRecord:
    """Return the record of a folder; an empty one if there is no readable one."""
    try:
        with (folder / COMPACTED).open("rb") as file:
            data = file.read(_MAX_BYTES)
        crc, body = data[:_CRC_BYTES], data[_CRC_BYTES:]
        if int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little") != crc:
            raise ValueError("it does not match its CRC-32C")
        return msgspec.msgpack.decode(body, type=CompactionRecord)
    except FileNotFoundError:
        return CompactionRecord()
    except (OSError, ValueError) as error:
        log.warning("compaction: starts over path=%s reason=%s", folder / COMPACTED, error)
        return CompactionRecord()


def save_record(folder: Path, record: CompactionRecord) -> None:
    """Replace the record of a folder, and sync. Raises `OSError`."""
    body = msgspec.msgpack.encode(record)
    write_whole(folder / COMPACTED, int(google_crc32c.value(body)).to_bytes(_CRC_BYTES, "little") + body)
