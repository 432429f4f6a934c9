"""The last step of making a batch, from its columns: see `batch.py` for the format."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from itertools import accumulate
from typing import Literal

import google_crc32c
import msgspec

from minimq_common.batch.compression import Compression
from minimq_common.batch.records import (
    CODEC_NONE,
    CODEC_ZSTD,
    CRC_BYTES,
    DIRECTORY,
    FIFO_VERSION,
    HEADER,
    MAX_METADATA,
    MAX_TAG,
    MAX_TAG_HASHES,
    MAX_TAGS,
    SEPARATOR,
    TOO_MANY_TAGS,
    VERSION,
    Section,
    lane_bytes,
    tag_hash,
)
from minimq_common.errors import InvalidArgument


class BatchColumns(msgspec.Struct, frozen=True, kw_only=True):
    """The checked columns of a batch, which lacks nothing but its number and when its messages were born.

    Attributes:
        sections: one for each `Section`, of bytes or anything that Python can read as bytes; that of born times is
            left empty.
        count: number of records, at least one.
        largest_body: size in bytes of the largest body.
        tag_hashes: as `tag_section` returns them; `[0]` when no record has a tag.
        compression: of the batch; None for none.
        lane: of the message group that all records have; 0 when they have none.
    """

    sections: list[bytes]
    count: int
    largest_body: int
    tag_hashes: list[int] | None
    compression: Compression | None = None
    lane: int = 0

    def __len__(self) -> int:
        return self.count

    @property
    def size(self) -> int:
        """Bytes of all sections."""
        return sum(map(len, self.sections))

    def build(self, born_ms: int | Sequence[int], producer_id: int, sequence: int, unsettled: int = 0) -> bytes:
        """Return the batch, compressed where that was asked for and is worth it.

        Args:
            born_ms: when the messages were handed in, in ms since 1970: one time for all, or one for each.
            producer_id: 64 random bits of the producer.
            sequence: number of the batch at that producer. Both together are the id of the batch.
            unsettled: how many sequence numbers just before this one may still be sent again.

        Raises:
            InvalidArgument: the messages were born too long after each other.
        """
        sections = list(self.sections)
        sections[Section.BORN], first_ms, last_ms = _encode_born(born_ms)
        directory = DIRECTORY.pack(*map(len, sections))
        codec = CODEC_NONE
        if self.compression is not None:
            frame = self.compression.compress((directory, *sections))
            if frame is not None:
                codec, directory, sections = CODEC_ZSTD, b"", [frame]
        hashes = self.tag_hashes
        listed = 0 if hashes is None else len(hashes)
        fixed = HEADER.pack(
            FIFO_VERSION if self.lane else VERSION,
            codec,
            TOO_MANY_TAGS if hashes is None else listed,
            self.count,
            self.largest_body,
            first_ms,
            last_ms,
            producer_id,
            sequence,
            unsettled,
        )
        head = fixed + lane_bytes(self.lane) + struct.pack(f"<{listed}I", *(hashes or ())) + directory
        crc = google_crc32c.value(head)
        for section in sections:
            if len(section):
                crc = google_crc32c.extend(crc, section)
        return b"".join((head, *sections, crc.to_bytes(CRC_BYTES, "little")))


def tag_section(dictionary: Sequence[str]) -> tuple[bytes, list[int] | None]:
    """Return the section of distinct tags, which are sorted, and their hashes, None when these are too many to list.

    Raises:
        InvalidArgument: a tag has a NUL or is too long, or there are too many.
    """
    check_metadata(max(map(len, dictionary)), "tag")
    if any(SEPARATOR in tag for tag in dictionary):
        raise InvalidArgument("a tag has a NUL character")
    if len(dictionary) > MAX_TAGS:
        raise InvalidArgument("more than 65,536 distinct tags in one batch: put identifiers into keys, not into tags")
    hashes = sorted({tag_hash(tag) for tag in dictionary}) if len(dictionary) <= MAX_TAG_HASHES else None
    return SEPARATOR.join(dictionary).encode(), hashes


def check_metadata(largest: int, what: Literal["tag", "keys", "properties"], limit: int = MAX_METADATA) -> None:
    """Raise `InvalidArgument` when the tag, the keys or the properties of a message have too many characters."""
    if what == "tag" and largest > MAX_TAG:
        raise InvalidArgument(
            f"the tag of a message has {largest} characters, the limit is {MAX_TAG}: put identifiers into keys, and "
            "text into a property"
        )
    if largest > limit:
        raise InvalidArgument(
            f"the {what} of a message have {largest} characters, the limit is {limit}: put it into the body"
        )


def offsets(lengths: Sequence[int]) -> bytes:
    """Return where the values of a column with these lengths begin, and where the last one ends."""
    return struct.pack(f"<{len(lengths) + 1}i", *accumulate(lengths, initial=0))  # half the time of an `array`


def narrow(numbers: Sequence[int], largest: int) -> bytes:
    """Return small numbers in the fewest bytes each; nothing at all when all are 0."""
    if largest == 0:
        return b""
    if largest < 1 << 8:
        return bytes(numbers)
    return struct.pack(f"<{len(numbers)}{'H' if largest < 1 << 16 else 'I'}", *numbers)


def _encode_born(born_ms: int | Sequence[int]) -> tuple[bytes, int, int]:
    if isinstance(born_ms, int):
        return b"", born_ms, born_ms
    first, last = min(born_ms), max(born_ms)
    if last - first >= 1 << 32:
        raise InvalidArgument("the messages of one batch were born more than 49 days apart")
    return narrow([born - first for born in born_ms], last - first), first, last
