"""The rows of the due table: of batches that wait, and of those that were recalled."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import NamedTuple

import google_crc32c

from minimq_broker.core.held.delays import BatchDelayed, BatchesRecalled, DueKey
from minimq_broker.core.state import Effect
from minimq_common.errors import CorruptEntry

#: When the batch is due, its id, and the kind of the row: that of a recall comes ahead of that of its batch.
_KEY = struct.Struct(">QQB")
_RECALL, _WAIT = 0, 1
#: Size of the entry, number of messages, topic id, queue id, whether it may be recalled.
_WAITING = struct.Struct("<IIQI?")
#: Log position of the fact.
_RECALLED = struct.Struct("<Q")
#: Behind both: the CRC-32C of the key and the row.
_SUM = struct.Struct("<I")
_MAX = (1 << 64) - 1


class DueRow(NamedTuple):
    """The row of a batch that waits. Its id is the position of its entry."""

    key: DueKey
    size: int
    messages: int
    topic_id: int
    queue_id: int
    is_recallable: bool

    @property
    def position(self) -> int:
        """Log position of the entry."""
        return self.key.id

    def pack(self) -> tuple[bytes, bytes]:
        """Return key and row as they are stored."""
        return _summed(_KEY.pack(*self.key, _WAIT), _WAITING.pack(*self[1:]))


class RecallRow(NamedTuple):
    """The row of a recall: the key of the batch, and the position of the fact."""

    key: DueKey
    position: int

    def pack(self) -> tuple[bytes, bytes]:
        """Return key and row as they are stored."""
        return _summed(_KEY.pack(*self.key, _RECALL), _RECALLED.pack(self.position))


AnyDueRow = DueRow | RecallRow


def _summed(key: bytes, value: bytes) -> tuple[bytes, bytes]:
    return key, value + _SUM.pack(google_crc32c.value(key + value))


def due_rows_of(effect: Effect, position: int, size: int) -> Iterator[AnyDueRow]:
    """Yield the rows of the entry with an effect, at a log position and of a size."""
    if isinstance(effect, BatchDelayed):
        place = effect.place
        yield DueRow(effect.key, size, effect.messages, place.topic_id, place.queue_id, effect.is_recallable)
    elif isinstance(effect, BatchesRecalled):
        yield from (RecallRow(DueKey(each.due_ms, each.id), position) for each in effect.batches)


def key_after(key: DueKey) -> bytes:
    """Return where in the table the rows behind a key begin."""
    return _KEY.pack(*key, 0xFF)


def key_from(due_ms: int) -> bytes:
    """Return where in the table the rows begin that are due at a time or later, in ms since 1970."""
    return _KEY.pack(min(due_ms, _MAX), 0, 0)


def wait_key(key: DueKey) -> bytes:
    """Return under what the row of a waiting batch is stored."""
    return _KEY.pack(*key, _WAIT)


def recall_key(key: DueKey) -> bytes:
    """Return under what the row of its recall is stored."""
    return _KEY.pack(*key, _RECALL)


def due_key_in(key: bytes | memoryview) -> DueKey:
    """Return the key of a batch in the key of its row. Raises `struct.error` if it is none."""
    due_ms, id_, _ = _KEY.unpack(key)
    return DueKey(due_ms, id_)


def is_recall(key: bytes | memoryview) -> bool:
    """Return whether the key of a row is that of a recall."""
    return key[-1] == _RECALL


def unpack_due(key: bytes, value: bytes) -> AnyDueRow:
    """Return a row as it is stored. Raises `CorruptEntry` when it does not match its checksum."""
    stored = value[: -_SUM.size]
    try:
        if _summed(key, stored)[1] != value:
            raise CorruptEntry("a row of the due table does not match its CRC-32C")
        due = due_key_in(key)
        if is_recall(key):
            return RecallRow(due, *_RECALLED.unpack(stored))
        return DueRow(due, *_WAITING.unpack(stored))
    except struct.error as error:
        raise CorruptEntry(f"a row of the due table is malformed: {error}") from None


def position_in_due(key: bytes | memoryview, value: bytes | memoryview) -> int:
    """Return the log position of the entry that a row as stored is of."""
    return int(_RECALLED.unpack_from(value)[0]) if is_recall(key) else due_key_in(key).id
