"""The bytes of one entry of the CommitLog: a short header, then a batch or a fact.

The CRC-32C of an entry covers its header and its payload. Of a batch it covers only the fixed part of the batch header:
that is all the broker relies on, and the batch has its own checksum. Some kinds have a field between header and batch:
the feature of a held batch with its note, the key of a released one.
"""

from __future__ import annotations

import struct
from enum import IntEnum
from typing import NamedTuple

import google_crc32c

from minimq_broker.state.facts import AtomicBegun, Fact, decode_fact, encode_fact
from minimq_broker.state.producers import BatchLocation
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_broker.state.state import BatchApplied, Effect, QueueEnd, QueueKey
from minimq_common.batch import header as batch
from minimq_common.errors import CorruptBatch, CorruptEntry, InvalidArgument, StoreError

#: crc, kind, tag of the user who sent the batch (0 if it has none), queue id, topic id, base offset, store time in ms.
_HEADER = struct.Struct("<IBQIqqq")
HEADER_BYTES = _HEADER.size
_CRC_BYTES = 4
#: A batch at a lower offset ends within 64 bits, however many records it has.
_MAX_OFFSET = (1 << 63) - batch.MAX_RECORDS
#: `Feature.tag`, whether the producer table has the batch, when it is due, length of the feature's note, which follows.
_HELD = struct.Struct("<B?qH")
#: `Feature.tag`, `HeldKey`.
_RELEASED = struct.Struct("<Bqq")


class EntryKind(IntEnum):
    BATCH = 1
    FACT = 2
    #: In no queue until a feature releases it.
    HELD = 3
    #: In a queue, formerly held.
    RELEASED = 4


#: Kinds with a batch in a queue, which has an index row.
IN_QUEUE = frozenset((EntryKind.BATCH, EntryKind.RELEASED))
#: Offset of the batch within an entry, for kinds with a field of fixed size before it.
_BATCH_AT: dict[int, int] = {EntryKind.RELEASED: HEADER_BYTES + _RELEASED.size}
#: Offset of the kind within an entry.
KIND_AT = _CRC_BYTES
_KINDS = frozenset(EntryKind)


class EntryHeader(NamedTuple):
    """The header of an entry. Queue and offset are 0 for a fact, the offset also for a held batch."""

    kind: EntryKind
    #: `Caller.tag` of the user who sent the batch.
    user: int
    queue: QueueKey
    base_offset: int
    stored_ms: int


def batch_entry(
    queue: QueueKey,
    base_offset: int,
    stored_ms: int,
    data: bytes | memoryview,
    *,
    user: int = 0,
    kind: EntryKind = EntryKind.BATCH,
    more: bytes = b"",
) -> bytes:
    """Return the entry of a batch, with the field `more` of some kinds."""
    head = _HEADER.pack(0, kind, user, queue.queue_id, queue.topic_id, base_offset, stored_ms)[_CRC_BYTES:] + more
    crc = google_crc32c.value(head + data[: batch.HEADER_BYTES])
    return b"".join((crc.to_bytes(_CRC_BYTES, "little"), head, data))


def held_entry(
    tag: int, queue: QueueKey, stored_ms: int, until_ms: int, note: bytes, data: bytes, *, numbered: bool, user: int = 0
) -> bytes:
    """Return the entry of a batch that a feature holds."""
    more = _HELD.pack(tag, numbered, until_ms, len(note)) + note
    return batch_entry(queue, 0, stored_ms, data, user=user, kind=EntryKind.HELD, more=more)


def released_entry(
    tag: int, queue: QueueKey, base_offset: int, stored_ms: int, key: HeldKey, data: bytes | memoryview
) -> bytes:
    """Return the entry of a batch that was held, in its queue."""
    more = _RELEASED.pack(tag, *key)
    return batch_entry(queue, base_offset, stored_ms, data, kind=EntryKind.RELEASED, more=more)


def fact_entry(fact: Fact, stored_ms: int) -> bytes:
    rest = _HEADER.pack(0, EntryKind.FACT, 0, 0, 0, 0, stored_ms)[_CRC_BYTES:] + encode_fact(fact)
    return b"".join((google_crc32c.value(rest).to_bytes(_CRC_BYTES, "little"), rest))


def read_header(entry: memoryview, position: int) -> EntryHeader:
    """Return the verified header of the entry at a log position. Raises `CorruptEntry`, `StoreError`."""
    if len(entry) < HEADER_BYTES:
        raise CorruptEntry(f"the entry at position {position} is cut off after {len(entry)} bytes")
    crc, kind, user, queue_id, topic_id, base_offset, stored_ms = _HEADER.unpack_from(entry)
    covered = entry[_CRC_BYTES:] if kind == EntryKind.FACT else entry[_CRC_BYTES : batch_at(entry) + batch.HEADER_BYTES]
    if google_crc32c.value(bytes(covered)) != crc:
        raise CorruptEntry(f"the entry at position {position} does not match its CRC-32C")
    if kind not in _KINDS:
        raise StoreError(
            f"the entry at position {position} is of kind {kind}, which is unknown to this release: open the "
            "directory with the newer release that wrote it"
        )
    return EntryHeader(EntryKind(kind), user, QueueKey(topic_id, queue_id), base_offset, stored_ms)


def batch_at(entry: memoryview | bytes) -> int:
    """Return the offset of the batch or fact within an entry, which must have a whole header."""
    kind = int(entry[KIND_AT])
    if kind != EntryKind.HELD or len(entry) < HEADER_BYTES + _HELD.size:
        return _BATCH_AT.get(kind, HEADER_BYTES)
    return HEADER_BYTES + _HELD.size + int(_HELD.unpack_from(entry, HEADER_BYTES)[-1])


def stands_at(entry: memoryview | bytes, queue: QueueKey, base_offset: int, stored_ms: int) -> bool:
    """Return whether the header names this place in a queue. Does not verify the checksum."""
    found = _HEADER.unpack_from(entry)
    return found[1] in IN_QUEUE and found[3:] == (queue.queue_id, queue.topic_id, base_offset, stored_ms)


def payload_of(entry: memoryview) -> memoryview:
    return entry[batch_at(entry) :]


def released_from(entry: memoryview | bytes, position: int) -> tuple[int, HeldKey]:
    """Return tag and key in the entry of a released batch. Raises `CorruptEntry`."""
    try:
        tag, *key = _RELEASED.unpack_from(entry, HEADER_BYTES)
    except struct.error as error:
        raise CorruptEntry(f"the entry at position {position} has no key: {error}") from None
    return tag, HeldKey(*key)


def held_batch(data: bytes, tag: int, key: HeldKey) -> tuple[memoryview, BatchHeld]:
    """Verify that an entry has the batch that a feature holds under a key; return the batch and its effect."""
    done = opened(data, key.position).effect
    if not isinstance(done, BatchHeld) or (done.tag, done.key) != (tag, key):
        raise CorruptEntry(f"the entry at position {key.position} has no batch that is held until {key.until_ms}")
    return memoryview(data)[batch_at(data) :], done


#: First bytes of an encoded `AtomicBegun`: all but the size.
_ATOMIC = encode_fact(AtomicBegun(0))[:-1]


def atomic_size(entry: memoryview) -> int:
    """Return the size in bytes of the atomic append that follows this entry; 0 if none does."""
    if entry[HEADER_BYTES : HEADER_BYTES + len(_ATOMIC)] != _ATOMIC or entry[_CRC_BYTES] != EntryKind.FACT:
        return 0
    fact = decode_fact(entry[HEADER_BYTES:])
    return fact.size if isinstance(fact, AtomicBegun) else 0


class OpenedEntry(NamedTuple):
    """A verified entry, with its effect on the state."""

    header: EntryHeader
    #: None unless the entry has a batch in a queue.
    about: batch.Header | None
    effect: Effect


def opened(data: bytes | memoryview, position: int, *, verified: bool = False) -> OpenedEntry:
    """Verify an entry for a log position, and the batch in it unless `verified`. Raises `StoreError`."""
    entry = memoryview(data)
    header = read_header(entry, position)
    payload = payload_of(entry)
    try:
        if header.kind == EntryKind.FACT:
            return OpenedEntry(header, None, decode_fact(payload))
        about = batch.read_header(payload) if verified else batch.verified_header(bytes(payload))
    except CorruptBatch as error:
        raise CorruptEntry(f"the entry at position {position} has a damaged batch: {error.message}") from None
    except (InvalidArgument, StoreError) as error:
        raise StoreError(f"the entry at position {position} cannot be read: {error.message}") from None
    if not 0 <= header.base_offset < _MAX_OFFSET:
        raise CorruptEntry(f"the entry at position {position} has offset {header.base_offset}, which no queue has")
    done = _effect_of(header, about, entry, position)
    return OpenedEntry(header, about if header.kind in IN_QUEUE else None, done)


def effect(entry: memoryview, position: int) -> Effect:
    """Return the effect of the entry at a log position on the state. Verifies the entry, not the batch in it."""
    return opened(entry, position, verified=True).effect


def stored_ms_of(entry: memoryview) -> int:
    """Return when an entry was written, in ms since 1970. Does not verify the entry."""
    return int(_HEADER.unpack_from(entry)[-1])


def _effect_of(header: EntryHeader, about: batch.Header, entry: memoryview, position: int) -> BatchApplied | BatchHeld:
    if header.kind == EntryKind.HELD:
        return _held_in(header, about, entry, position)
    end = QueueEnd(header.base_offset + about.count, header.stored_ms)
    place = BatchLocation(*header.queue, header.base_offset, header.stored_ms)
    if header.kind == EntryKind.RELEASED:
        tag, key = released_from(entry, position)
        return BatchApplied(header.queue, end, place, released_by=tag, released=key)
    numbers = about.producer_id, about.sequence, about.settled_before
    return BatchApplied(header.queue, end, place, *numbers, user=header.user)


def _held_in(header: EntryHeader, about: batch.Header, entry: memoryview, position: int) -> BatchHeld:
    try:
        tag, numbered, until_ms, _ = _HELD.unpack_from(entry, HEADER_BYTES)
    except struct.error as error:
        raise CorruptEntry(f"the entry at position {position} does not name its feature: {error}") from None
    note = bytes(entry[HEADER_BYTES + _HELD.size : batch_at(entry)])
    place = BatchLocation(*header.queue, position, header.stored_ms, until_ms)
    numbers = (about.producer_id, about.sequence, about.settled_before) if numbered else (0, 0, 0)
    return BatchHeld(tag, note, place, about.count, *numbers, user=header.user)
