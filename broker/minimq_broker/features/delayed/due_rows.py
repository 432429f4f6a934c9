"""The index rows of delayed messages in a segment: its delayed batches by due time, and the recalls that it holds.

    (due time, id of the batch, kind of row) -> log position of the entry; of a batch also topic id and messages

Rows stay after the publication: the mark of the state separates published from waiting batches.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from minimq_broker.features.delayed.table import NAME, BatchesRecalled
from minimq_broker.features.feature import IndexRow
from minimq_broker.state.queue_ends import BatchHeld, HeldKey

#: Due time and id of the batch, kind of row. A recall sorts before its batch.
_KEY = struct.Struct(">QQB")
_RECALL, _WAIT, _BEHIND = 0, 1, 0xFF
#: Topic id and number of messages of a batch, needed if its entry is damaged.
_WAITING = struct.Struct("<QI")
_MAX = (1 << 64) - 1


class DueRow(NamedTuple):
    """A row of a delayed batch or of its recall."""

    due: HeldKey
    is_wait: bool
    #: Log position of its entry.
    position: int
    about: bytes

    @property
    def counted(self) -> tuple[int, int]:
        """Topic id and number of messages of a batch, unverified; zeros if the row is malformed."""
        return _WAITING.unpack(self.about) if len(self.about) == _WAITING.size else (0, 0)


def due_row(row: IndexRow) -> DueRow:
    """Decode a stored row. Raises `struct.error`."""
    due_ms, id_, kind = _KEY.unpack(row.key)
    return DueRow(HeldKey(due_ms, id_), kind != _RECALL, row.position, row.about)


def index_rows(effect: Any, position: int) -> Iterator[IndexRow]:
    """Yield the index rows of the entry with this effect and log position."""
    if isinstance(effect, BatchHeld):
        about = _WAITING.pack(effect.place.topic_id, effect.messages)
        yield IndexRow(NAME, _KEY.pack(*effect.key, _WAIT), position, about)
    elif isinstance(effect, BatchesRecalled):
        for each in effect.batches:
            yield IndexRow(NAME, recall_key(HeldKey(each.due_ms, each.id)), position)


def recall_key(key: HeldKey) -> bytes:
    """Return the database key of the recall of a batch."""
    return _KEY.pack(*key, _RECALL)


def key_in(key: bytes) -> HeldKey:
    """Return the key of the batch from a database key. Raises `struct.error`."""
    return HeldKey(*_KEY.unpack(key)[:2])


def key_after(key: HeldKey) -> bytes:
    """Return the database key at which the rows after a key begin."""
    return _KEY.pack(*key, _BEHIND)


def key_from(due_ms: int) -> bytes:
    """Return the database key at which the rows due at or after a time (ms since 1970) begin."""
    return _KEY.pack(min(due_ms, _MAX), 0, 0)
