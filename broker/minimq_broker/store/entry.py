"""One entry of the CommitLog as bytes: a short header, then a batch or a fact.

The CRC-32C of an entry covers its header and the payload, but of a batch only the fixed part of its header, which is
all that the broker itself relies on: the batch brings a checksum of its own.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from minimq_broker.core.facts import Fact, decode_fact, encode_fact
from minimq_broker.core.producers import Place
from minimq_broker.core.state import BatchApplied, QueueEnd, QueueKey
from minimq_common import batch
from minimq_common.errors import CorruptEntry, MiniMQError, StoreError

#: crc, kind, one spare byte, two spare bytes, queue id, topic id, base offset, store time in ms.
_HEADER = struct.Struct("<IBxHIqqq")
HEADER_BYTES = _HEADER.size
_CRC_BYTES = 4


class Kind(IntEnum):
    """What follows the header of an entry."""

    BATCH = 1
    FACT = 2


class EntryHeader(NamedTuple):
    """The header of an entry; queue and offset are 0 for a fact."""

    kind: Kind
    queue: QueueKey
    base_offset: int
    stored_ms: int


def batch_entry(queue: QueueKey, base_offset: int, stored_ms: int, data: bytes) -> bytes:
    """Return the entry of a batch."""
    head = _HEADER.pack(0, Kind.BATCH, 0, queue.queue_id, queue.topic_id, base_offset, stored_ms)[_CRC_BYTES:]
    crc = google_crc32c.value(head + data[: batch.HEADER_BYTES])
    return b"".join((crc.to_bytes(_CRC_BYTES, "little"), head, data))


def fact_entry(fact: Fact, stored_ms: int) -> bytes:
    """Return the entry of a fact."""
    rest = _HEADER.pack(0, Kind.FACT, 0, 0, 0, 0, stored_ms)[_CRC_BYTES:] + encode_fact(fact)
    return b"".join((google_crc32c.value(rest).to_bytes(_CRC_BYTES, "little"), rest))


def read_header(entry: memoryview, position: int) -> EntryHeader:
    """Return the header of the entry at a log position. Raises `CorruptEntry`."""
    if len(entry) < HEADER_BYTES:
        raise CorruptEntry(f"the entry at position {position} is cut off after {len(entry)} bytes")
    crc, kind, _, queue_id, topic_id, base_offset, stored_ms = _HEADER.unpack_from(entry)
    covered = entry[_CRC_BYTES:] if kind == Kind.FACT else entry[_CRC_BYTES : HEADER_BYTES + batch.HEADER_BYTES]
    if google_crc32c.value(bytes(covered)) != crc or kind not in (Kind.BATCH, Kind.FACT):
        raise CorruptEntry(f"the entry at position {position} does not match its CRC-32C")
    return EntryHeader(Kind(kind), QueueKey(topic_id, queue_id), base_offset, stored_ms)


def read_fact(payload: memoryview, position: int) -> Fact:
    """Return the fact in the entry at a log position. Raises `StoreError` when this release does not know it."""
    try:
        return decode_fact(payload)
    except StoreError as error:
        raise StoreError(f"the entry at position {position} cannot be read: {error.message}") from None


class OpenedEntry(NamedTuple):
    """An entry that came from elsewhere, verified: its header, that of its batch if it has one, and what it does."""

    header: EntryHeader
    about: batch.Header | None
    effect: Fact | BatchApplied


def opened(data: bytes, position: int) -> OpenedEntry:
    """Verify an entry for a log position, with the batch in it.

    Raises:
        CorruptEntry: a checksum does not match.
        StoreError: it is of a kind or a format that this release does not know.
    """
    entry = memoryview(data)
    header = read_header(entry, position)
    if header.kind == Kind.FACT:
        return OpenedEntry(header, None, read_fact(entry[HEADER_BYTES:], position))
    payload = data[HEADER_BYTES:]
    try:
        batch.verify(payload)
        about = batch.read_header(payload)
    except MiniMQError as error:
        raise CorruptEntry(f"the entry at position {position} cannot be taken over: {error.message}") from None
    return OpenedEntry(header, about, _applied(header, about))


def effect(entry: memoryview, position: int) -> Fact | BatchApplied:
    """Return what the entry at a log position does to the state. Raises `CorruptEntry`, and as `read_fact`."""
    header = read_header(entry, position)
    payload = entry[HEADER_BYTES:]
    if header.kind == Kind.FACT:
        return read_fact(payload, position)
    return _applied(header, batch.read_header(payload))


def _applied(header: EntryHeader, about: batch.Header) -> BatchApplied:
    end = QueueEnd(header.base_offset + about.count, header.stored_ms)
    place = Place(*header.queue, header.base_offset, header.stored_ms)
    return BatchApplied(header.queue, end, place, about.producer_id, about.sequence, about.settled_before)
