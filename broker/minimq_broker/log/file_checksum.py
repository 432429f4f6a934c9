"""The CRC-32C of a sealed segment file: its last 16 bytes, behind the pages, which LMDB does not read."""

from __future__ import annotations

import os
import struct
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import BinaryIO

import google_crc32c

from minimq_broker.log.page_walk import PageDamage

_TRAILER = struct.Struct("<12sI")
_MAGIC = b"minimq-crc32"
#: Takes its place in a file that was found damaged.
_DAMAGED_MAGIC = b"minimq-wrong"
#: Pages of LMDB are a multiple of this, so a page cannot be mistaken for a trailer.
_LEAST_PAGE_BYTES = 512
_STEP_BYTES = 1 << 20


def has_checksum(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _stored(file) is not None


def make_checksum(path: Path) -> Iterator[None]:
    """Append the checksum to a file that is not written any more, and sync; a generator of small steps."""
    with path.open("r+b") as file:  # the same file to the end, even if another one takes its name
        if _stored(file) is not None:
            return
        crc = yield from _checksum(file, file.seek(0, os.SEEK_END))
        file.write(_TRAILER.pack(_MAGIC, crc))
        file.flush()
        os.fsync(file.fileno())


def verify_checksum(path: Path) -> Iterator[None]:
    """Compare a file with its checksum, if it has one; a generator of small steps. Raises `PageDamage`, `OSError`."""
    with path.open("rb") as file:
        stored = _stored(file)
        if stored is None:
            return
        crc = yield from _checksum(file, file.seek(0, os.SEEK_END) - _TRAILER.size)
    if crc != stored[1]:
        raise PageDamage(f"it does not match its CRC-32C: {crc:08x}, and {stored[1]:08x} when it was sealed")


def remove_checksum(path: Path) -> None:
    """Remove the checksum, if there is one, before the file is written again; and sync."""
    with path.open("r+b") as file:
        if _stored(file) is not None:
            file.truncate(file.seek(0, os.SEEK_END) - _TRAILER.size)
            os.fsync(file.fileno())


def mark_damaged(path: Path) -> None:
    """Note in a file with a checksum that it was found damaged, and sync: each start verifies it."""
    with path.open("r+b") as file:
        if _stored(file) is not None:
            file.seek(-_TRAILER.size, os.SEEK_END)
            file.write(_DAMAGED_MAGIC)
            file.flush()
            os.fsync(file.fileno())


def was_damaged(path: Path) -> bool:
    with path.open("rb") as file:
        return (_stored(file) or (_MAGIC, 0))[0] == _DAMAGED_MAGIC


def _stored(file: BinaryIO) -> tuple[bytes, int] | None:
    size = file.seek(0, os.SEEK_END)
    if size % _LEAST_PAGE_BYTES != _TRAILER.size:
        return None
    file.seek(size - _TRAILER.size)
    magic, crc = _TRAILER.unpack(file.read(_TRAILER.size))
    return (magic, crc) if magic in (_MAGIC, _DAMAGED_MAGIC) else None


def _checksum(file: BinaryIO, size: int) -> Generator[None, None, int]:
    crc = at = 0
    while at < size:
        file.seek(at)
        part = file.read(min(size - at, _STEP_BYTES))
        if not part:
            break
        crc, at = google_crc32c.extend(crc, part), at + len(part)
        yield
    file.seek(size)
    return crc
