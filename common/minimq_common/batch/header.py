"""The batch format: many records as columns in one `bytes`, made once by a producer and opened only by a reader.

A batch is the unit of sending, storing, replicating and reading, so that a broker never touches a message. It is::

    header      fixed part (`HEADER`), in version 3 the lane, then one 32-bit hash for each distinct tag
    directory   length of each of the sections that follow, as 32-bit integers
    sections    in the order of `Section`; a column that no record uses has length 0
    checksum    CRC-32C of everything before it

With `CODEC_ZSTD`, directory and sections are one zstd frame: header and checksum stay as they are, so that a broker,
which looks at nothing else, is not concerned.

All numbers are little-endian. Offsets are 32-bit and count + 1 long, which is Arrow's layout for binary columns:
a reader that wants Arrow arrays takes the buffers as they are.

Version 3 is that of FIFO topics. All messages of such a batch have one message group; its lane is a hash of that name,
by which a broker keeps their order.

Version 4 is that of batches that a broker has compacted: the count is still that of the offsets they hold, the lane
gives place to the number of records that remain, and `record_origins.py` has the columns that stand ahead of the
directory. No producer sends such a batch. All other batches are of version 2.

A batch does not know its topic, its queue or its offsets: it can be sent again to another queue as it is.
"""

from __future__ import annotations

import logging
import struct
from enum import IntEnum

import google_crc32c
import msgspec

from minimq_common.batch.compression import content_size
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.moments import MAX_TIME_MS

VERSION = 2
#: That of a batch with a lane.
FIFO_VERSION = 3
#: That of a batch from which compaction has removed records, or that it has joined of several.
COMPACTED_VERSION = 4
_VERSIONS = (VERSION, FIFO_VERSION, COMPACTED_VERSION)
CODEC_NONE = 0
CODEC_ZSTD = 1

#: version, codec, number of tag hashes, count, largest body, first and last born time, producer id, sequence number,
#: number of unsettled sequence numbers.
HEADER = struct.Struct("<BBHIIqqQQI")
HEADER_BYTES = HEADER.size
_LANE = struct.Struct("<I")
LANE_BYTES = _LANE.size
#: Number of records that remain in a compacted batch, and two bits that say what stands ahead of its directory.
_REMAINING = struct.Struct("<I")
_REMAINING_BITS = (1 << 30) - 1
CRC_BYTES = 4
#: The CRC-32C of any bytes followed by their own CRC-32C: so a batch is verified whole, without a copy of a part.
_CRC_RESIDUE = 0x48674BC7
#: Written instead of the number of hashes when a batch has more distinct tags than are worth listing.
TOO_MANY_TAGS = 0xFFFF
MAX_TAG_HASHES = 64
#: Most records in one batch. It bounds what a small compressed batch can make of a reader's memory.
MAX_RECORDS = 1 << 20
#: Most distinct tags in one batch: their codes have 16 bits.
MAX_TAGS = 1 << 16
#: Most characters of a tag.
MAX_TAG = 255
#: Most characters that the keys, or the properties, of one message may have.
MAX_METADATA = 32_767
#: Further characters of properties in a copy for a group, a dead letter or a retry: they tell where it comes from.
MAX_COPY_METADATA = 2_048
#: What a reader takes: a character has at most four bytes.
MAX_METADATA_BYTES = 4 * MAX_METADATA + MAX_COPY_METADATA
#: No delta of 32 bits leads from here to a later time than that, so the born times need not be looked at one by one.
_MAX_BORN_MS = MAX_TIME_MS - (1 << 32)

#: Joins the keys of one record, and the tags of the dictionary.
SEPARATOR = "\0"


class Section(IntEnum):
    """The sections of a batch in their order. Those of 32-bit numbers come first, so that they are aligned."""

    BODY_OFFSETS = 0
    KEY_OFFSETS = 1
    #: Number of properties before each record, then the offsets of their names and values.
    PROPERTY_OFFSETS = 2
    NAME_OFFSETS = 3
    VALUE_OFFSETS = 4
    #: Milliseconds after the first born time, in 4, 2 or 1 bytes each; empty when all are 0.
    BORN = 5
    #: Index into the dictionary, in 2 or 1 bytes each; empty when all are 0.
    TAG_CODES = 6
    #: Distinct tags joined by `SEPARATOR`; the empty one stands for "no tag". Empty when no record has a tag.
    TAG_DICTIONARY = 7
    KEYS = 8
    NAMES = 9
    VALUES = 10
    BODIES = 11


DIRECTORY = struct.Struct(f"<{len(Section)}I")


class Header(msgspec.Struct, frozen=True, gc=False):
    """The fields of a batch that are readable without opening it."""

    version: int
    codec: int
    count: int
    #: Size in bytes of the largest body, so that a broker can keep its limit.
    largest_body: int
    born_first_ms: int
    born_last_ms: int
    #: 0 for a producer that does not number its batches: those are stored as often as they are sent.
    producer_id: int
    sequence: int
    #: How many sequence numbers just before this one may still be sent again; all earlier ones never will be.
    unsettled: int
    #: Sorted hashes of the tags in the batch (0 for "no tag"); None when there are too many to list.
    tag_hashes: tuple[int, ...] | None
    #: Hash of the message group of all messages; 0 in a batch that is not for a FIFO topic.
    lane: int = 0
    #: How many of the records compaction has removed.
    removed: int = 0

    @property
    def size(self) -> int:
        """Length of the header in bytes."""
        more = LANE_BYTES if self.version == FIFO_VERSION else _REMAINING.size
        return HEADER_BYTES + (more if self.version != VERSION else 0) + 4 * len(self.tag_hashes or ())

    @property
    def remaining(self) -> int:
        """Number of records that it has."""
        return self.count - self.removed

    @property
    def settled_before(self) -> int:
        """The producer will never send a batch with a smaller sequence number again."""
        return max(self.sequence - self.unsettled, 0)


def tag_hash(tag: str | None) -> int:
    """Return the 32-bit hash by which brokers tell tags apart; the same in every process and release."""
    return int(google_crc32c.value(tag.encode())) if tag else 0


def lane_bytes(lane: int) -> bytes:
    """Return a lane as it stands in a batch: behind the fixed part of the header, if it is not 0."""
    return _LANE.pack(lane) if lane else b""


def read_lane(data: bytes | memoryview) -> int:
    """Return the lane of a batch without a look at the rest; 0 if it has none. Raises `CorruptBatch`."""
    if data[0] != FIFO_VERSION:
        return 0
    if len(data) < HEADER_BYTES + LANE_BYTES + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    return int(_LANE.unpack_from(data, HEADER_BYTES)[0])


def remaining_in(data: bytes | memoryview) -> int:
    """Return how many records remain in a compacted batch without a look at the rest. Raises `CorruptBatch`."""
    if len(data) < HEADER_BYTES + _REMAINING.size + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    return int(_REMAINING.unpack_from(data, HEADER_BYTES)[0]) & _REMAINING_BITS


def remaining_bytes(remaining: int, flags: int) -> bytes:
    """Return the number of records that remain with its flags, as it stands behind the fixed part of the header."""
    return _REMAINING.pack(remaining | flags)


def flags_of(data: bytes | memoryview) -> int:
    """Return the flags of a compacted batch, see `record_origins.py`."""
    return int(_REMAINING.unpack_from(data, HEADER_BYTES)[0]) & ~_REMAINING_BITS


def read_header(data: bytes | memoryview) -> Header:
    """Return the header of a batch whose checksum was verified: nothing else tells damage from a newer format."""
    if len(data) < HEADER_BYTES + CRC_BYTES:
        raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
    version, codec, hashes, count, largest, first, last, producer, sequence, unsettled = HEADER.unpack_from(data)
    if version not in _VERSIONS:
        raise InvalidArgument(
            f"batch format {version} is not known here (this is {COMPACTED_VERSION}): upgrade this side"
        )
    if count == 0:
        raise CorruptBatch("a batch without records")
    lane, removed, at = 0, 0, HEADER_BYTES
    if version == COMPACTED_VERSION:
        remaining, at = remaining_in(data), HEADER_BYTES + _REMAINING.size
        removed = count - remaining
        if removed < 0:
            raise CorruptBatch(f"a compacted batch says that {remaining} of its {count} records remain")
    elif version == FIFO_VERSION:
        lane, at = read_lane(data), HEADER_BYTES + LANE_BYTES
        if not lane:
            raise CorruptBatch("a batch for a FIFO topic without a message group")
    tags = None
    if hashes != TOO_MANY_TAGS:
        if len(data) < at + 4 * hashes + CRC_BYTES:
            raise CorruptBatch(f"a batch of {len(data)} bytes is shorter than its header")
        tags = struct.unpack_from(f"<{hashes}I", data, at)
    return Header(version, codec, count, largest, first, last, producer, sequence, unsettled, tags, lane, removed)


def verify(data: bytes) -> None:
    """Raise `CorruptBatch` unless the bytes of the batch match its checksum."""
    if google_crc32c.value(data) != _CRC_RESIDUE:
        raise CorruptBatch(f"a batch of {len(data)} bytes does not match its CRC-32C")


def check_header(header: Header, data: bytes) -> None:
    """Refuse a header that promises what a batch of this size and codec cannot hold. Does not open the batch.

    A broker calls this before it stores a batch: offsets are given by the count in the header.
    """
    check_ranges(header)
    size = header.size
    content = len(data) - size - CRC_BYTES
    if header.codec == CODEC_ZSTD:
        content = content_size(memoryview(data)[size:-CRC_BYTES])
    # Each record takes an offset, and one more offset stands behind the last.
    if content < DIRECTORY.size + 4 * (header.count - header.removed + 1) + header.largest_body:
        raise CorruptBatch(
            f"a batch says that it has {header.remaining} records, the largest of {header.largest_body} bytes, "
            f"but it has {content} bytes of content"
        )


def check_ranges(header: Header) -> None:
    """Raise `CorruptBatch` when a number of the header is not possible, whatever the content is."""
    if header.codec not in (CODEC_NONE, CODEC_ZSTD):
        raise CorruptBatch(
            f"codec {header.codec} of a batch is not known here: upgrade this side, if it is not damaged"
        )
    if header.count > MAX_RECORDS:
        raise CorruptBatch(f"a batch says that it has {header.count} records, the limit is {MAX_RECORDS}")
    if header.tag_hashes is not None and len(header.tag_hashes) > MAX_TAG_HASHES:
        raise CorruptBatch(f"a batch lists {len(header.tag_hashes)} hashes of tags, the limit is {MAX_TAG_HASHES}")
    if not 0 <= header.born_first_ms <= header.born_last_ms <= _MAX_BORN_MS:
        raise CorruptBatch(
            f"the records of a batch were born from {header.born_first_ms} to {header.born_last_ms} ms after 1970, "
            f"which is not a range within 0 to {_MAX_BORN_MS}"
        )


_told: set[str] = set()


def warn_of_slow_checksums(log: logging.Logger) -> None:
    """Log once in a process that `google-crc32c` is not compiled, and what to do."""
    if google_crc32c.implementation == "python" and not _told:
        _told.add(log.name)
        log.warning(
            "checksums are computed in pure Python, which makes sending and receiving 25 to 34 times slower: "
            "google-crc32c has no wheel for this Python and platform (there is none for Alpine Linux). Use a "
            "platform and Python version for which `pip download --only-binary=:all: google-crc32c` finds one, or "
            "build it with a C compiler and the library crc32c"
        )
