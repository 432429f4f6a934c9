"""The batch format: many records as columns in one `bytes`, encoded once by a producer and decoded only by readers.

Batches are sent, stored, replicated and read whole, so brokers do not touch single messages. The layout::

    header      fixed part (`HEADER`), in version 3 the group hash, then one 32-bit hash for each distinct tag
    directory   length of each section, as 32-bit integers
    sections    in the order of `Section`; a column that no record uses has length 0
    checksum    CRC-32C of everything before it

With `CODEC_ZSTD`, directory and sections are one zstd frame. Header and checksum are never compressed: they are all
that a broker needs to store and deliver a batch.

All numbers are little-endian. A column of offsets has count + 1 numbers of 32 bits. This is Arrow's layout for binary
columns, so a reader can use the buffers as Arrow arrays without a copy.

Version 3 is for FIFO topics: all messages of the batch have the same message group. The group hash is computed from the
group's name; brokers use it to keep the messages of a group in order.

Version 4 is for sparse batches, of which a broker has removed records; producers never send it. `count` is still the
number of offsets.
The number of remaining records replaces the group hash, and the columns of `record_origins.py` precede the directory.

All other batches have version 2. No batch contains its topic, queue or offsets, so a producer can resend it unchanged
to another queue.
"""

from __future__ import annotations

import logging
import struct
from enum import IntEnum

import google_crc32c
import msgspec

from minimq_common.batch.compression import content_size
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.timestamps import MAX_TIME_MS

VERSION = 2
FIFO_VERSION = 3
SPARSE_VERSION = 4
_VERSIONS = (VERSION, FIFO_VERSION, SPARSE_VERSION)
CODEC_NONE = 0
CODEC_ZSTD = 1

#: version, codec, number of tag hashes, count, largest body, first and last born time, producer id, sequence number,
#: number of unsettled sequence numbers.
HEADER = struct.Struct("<BBHIIqqQQI")
HEADER_BYTES = HEADER.size
#: After the fixed part: the group hash in version 3; in version 4 the number of remaining records (30 bits) and the two
#: flags of `record_origins.py`.
_MORE = struct.Struct("<I")
_REMAINING_BITS = (1 << 30) - 1
CRC_BYTES = 4
#: The CRC-32C of any data followed by its own CRC-32C. Allows verifying a batch without copying a part of it.
_CRC_RESIDUE = 0x48674BC7
#: Stands in place of the number of hashes if a batch has more than `MAX_TAG_HASHES` distinct tags.
TOO_MANY_TAGS = 0xFFFF
MAX_TAG_HASHES = 64
#: Bounds the memory that a small compressed batch can make a reader allocate.
MAX_RECORDS = 1 << 20
#: Distinct tags in one batch; tag codes have 16 bits.
MAX_TAGS = 1 << 16
#: Characters of a tag.
MAX_TAG = 255
#: Characters of all keys of one message, and of all its properties.
MAX_METADATA = 32_767
#: Additional characters for the properties that record the origin of a retry, a dead letter or a copy for a group.
MAX_COPY_METADATA = 2_048
#: Bytes that a reader accepts; a character has at most 4 bytes.
MAX_METADATA_BYTES = 4 * MAX_METADATA + MAX_COPY_METADATA
#: Adding a 32-bit delta to this stays within `MAX_TIME_MS`, so born times need no check one by one.
_MAX_BORN_MS = MAX_TIME_MS - (1 << 32)

#: Between the keys of one record, and between the tags of the dictionary.
SEPARATOR = "\0"


class Section(IntEnum):
    """The sections of a batch, in order. Those of 32-bit numbers come first, so they are aligned."""

    BODY_OFFSETS = 0
    KEY_OFFSETS = 1
    #: Number of properties before each record, then the offsets of their names and values.
    PROPERTY_OFFSETS = 2
    NAME_OFFSETS = 3
    VALUE_OFFSETS = 4
    #: Milliseconds after the first born time, in 4, 2 or 1 bytes each; empty if all are 0.
    BORN = 5
    #: Index into the dictionary, in 2 or 1 bytes each; empty if all are 0.
    TAG_CODES = 6
    #: Distinct tags joined by `SEPARATOR`; the empty tag means "no tag". Empty if no record has a tag.
    TAG_DICTIONARY = 7
    KEYS = 8
    NAMES = 9
    VALUES = 10
    BODIES = 11


DIRECTORY = struct.Struct(f"<{len(Section)}I")


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fields of a batch that are readable without decoding its content."""

    version: int
    codec: int
    count: int
    #: Bytes of the largest body, for the size limit of the broker.
    largest_body: int
    born_first_ms: int
    born_last_ms: int
    #: 0 if the producer does not number its batches; the broker then stores a batch as often as it arrives.
    producer_id: int
    sequence: int
    #: The producer never resends a batch with a smaller sequence number than this.
    settled_before: int
    #: Sorted hashes of the tags in the batch (0 for "no tag"); None if there are more than `MAX_TAG_HASHES`.
    tag_hashes: tuple[int, ...] | None
    #: Length of the header in bytes.
    size: int
    #: Hash of the message group of all messages; 0 if the batch is not for a FIFO topic.
    group_hash: int = 0
    #: Number of removed records.
    removed: int = 0

    @property
    def remaining(self) -> int:
        """Number of remaining records."""
        return self.count - self.removed


def tag_hash(tag: str | None) -> int:
    """Return the 32-bit hash by which brokers filter tags; the same in every process and release."""
    return int(google_crc32c.value(tag.encode())) if tag else 0


def group_hash_bytes(group_hash: int) -> bytes:
    """Return the bytes that follow the fixed part of the header: the group hash, or nothing if it is 0."""
    return _MORE.pack(group_hash) if group_hash else b""


def read_group_hash(data: bytes | memoryview) -> int:
    """Return only the group hash of a batch; 0 if it has none. Raises `CorruptBatch`."""
    return _more_in(data) if data[0] == FIFO_VERSION else 0


def _more_in(data: bytes | memoryview) -> int:
    if len(data) < HEADER_BYTES + _MORE.size + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    return int(_MORE.unpack_from(data, HEADER_BYTES)[0])


def remaining_bytes(remaining: int, flags: int) -> bytes:
    """Return the bytes that follow the fixed part of the header of a sparse batch."""
    return _MORE.pack(remaining | flags)


def flags_of(data: bytes | memoryview) -> int:
    """Return the flags of a sparse batch; `record_origins.py` defines them."""
    return _more_in(data) & ~_REMAINING_BITS


def read_header(data: bytes | memoryview) -> Header:
    """Return the header of a batch. Raises `CorruptBatch` if a number in it is out of range."""
    if len(data) < HEADER_BYTES + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    version, codec, hashes, count, largest, first, last, producer, sequence, unsettled = HEADER.unpack_from(data)
    is_right = version in _VERSIONS and 0 < count <= MAX_RECORDS and codec in (CODEC_NONE, CODEC_ZSTD)
    if not (is_right and 0 <= first <= last <= _MAX_BORN_MS):
        raise _wrong_number(version, count, codec, first, last)
    more, size = (0, HEADER_BYTES) if version == VERSION else (_more_in(data), HEADER_BYTES + _MORE.size)
    group_hash = removed = 0
    if version == SPARSE_VERSION:
        removed = count - (more & _REMAINING_BITS)
        if removed < 0:
            raise CorruptBatch(f"a sparse batch says that {count - removed} of its {count} records remain")
    elif version == FIFO_VERSION:
        group_hash = more
        if not group_hash:
            raise CorruptBatch("a batch for a FIFO topic without a message group")
    tags = None
    if hashes != TOO_MANY_TAGS:
        if hashes > MAX_TAG_HASHES:
            raise CorruptBatch(f"a batch lists {hashes} hashes of tags, the limit is {MAX_TAG_HASHES}")
        if len(data) < size + 4 * hashes + CRC_BYTES:
            raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
        tags = struct.unpack_from(f"<{hashes}I", data, size)
        size += 4 * hashes
    numbers = producer, sequence, max(sequence - unsettled, 0)
    return Header(version, codec, count, largest, first, last, *numbers, tags, size, group_hash, removed)


def _wrong_number(version: int, count: int, codec: int, first: int, last: int) -> CorruptBatch | InvalidArgument:
    if version not in _VERSIONS:
        return InvalidArgument(
            f"batch format {version} is not known here (this is {SPARSE_VERSION}): upgrade this side"
        )
    if not 0 < count <= MAX_RECORDS:
        return CorruptBatch(f"a batch says that it has {count} records: it can have 1 to {MAX_RECORDS}")
    if codec not in (CODEC_NONE, CODEC_ZSTD):
        return CorruptBatch(f"codec {codec} of a batch is not known here: upgrade this side, if it is not damaged")
    return CorruptBatch(
        f"the records of a batch were born from {first} to {last} ms after 1970, "
        f"which is not a range within 0 to {_MAX_BORN_MS}"
    )


def verified_header(data: bytes) -> Header:
    """Return the header of a batch from outside; does not decompress it.

    Raises `CorruptBatch` if its bytes do not match its checksum, or the header claims more than it can hold.
    """
    if google_crc32c.value(data) != _CRC_RESIDUE:
        raise CorruptBatch(f"a batch of {len(data)} bytes does not match its CRC-32C")
    header = read_header(data)
    content = len(data) - header.size - CRC_BYTES
    if header.codec == CODEC_ZSTD:
        content = content_size(memoryview(data)[header.size : -CRC_BYTES])
    # BODY_OFFSETS has one number more than there are records.
    if content < DIRECTORY.size + 4 * (header.count - header.removed + 1) + header.largest_body:
        raise CorruptBatch(
            f"a batch says that it has {header.remaining} records, the largest of {header.largest_body} bytes, "
            f"but it has {content} bytes of content"
        )
    return header


_told: set[str] = set()


def warn_of_slow_checksums(log: logging.Logger) -> None:
    """Log once per process if `google-crc32c` runs in pure Python, with the remedy."""
    if google_crc32c.implementation == "python" and not _told:
        _told.add(log.name)
        log.warning(
            "checksums are computed in pure Python, which makes sending and receiving 25 to 34 times slower: "
            "google-crc32c has no wheel for this Python and platform (there is none for Alpine Linux). Use a "
            "platform and Python version for which `pip download --only-binary=:all: google-crc32c` finds one, or "
            "build it with a C compiler and the library crc32c"
        )
