"""Offsets that groups commit at a slave while there is no master: kept in a file of their own, then handed over.

They are no entries of the log, which only a master writes. Each is numbered, so that those which a master has recorded
can be told from those that were committed since.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import msgspec

from minimq_broker.core.facts import CommittedOffset
from minimq_broker.core.state import QueueKey
from minimq_broker.store.lmdb_file import open_lmdb

FILE_NAME = "kept-offsets.mdb"
#: Address space for the map; a row takes about 60 bytes.
_MAP_BYTES = 1 << 30
_SERVED_KEY = b"\0served"


class Kept(NamedTuple):
    """An offset of a group, as it was kept under a number."""

    group: str
    queue: QueueKey
    offset: int
    number: int


class KeptOffsets:
    """The file. Any thread may call any method; those that change something sync, and are not for an event loop.

    Args:
        path: the file; made when it is not there.
    """

    def __init__(self, path: Path) -> None:
        self._env = open_lmdb(path, map_bytes=_MAP_BYTES, readonly=False)
        #: Protects what follows, and writing.
        self._lock = threading.Lock()
        self._rows: dict[tuple[str, QueueKey], Kept] = {}
        self._served = 0
        with self._env.begin() as txn, txn.cursor() as cursor:
            for key, value in cursor:
                if key == _SERVED_KEY:
                    self._served = msgspec.msgpack.decode(value)
                    continue
                group, topic_id, queue_id = msgspec.msgpack.decode(key)
                kept = Kept(group, QueueKey(topic_id, queue_id), *msgspec.msgpack.decode(value))
                self._rows[group, kept.queue] = kept
        self._number = max((kept.number for kept in self._rows.values()), default=0)

    def close(self) -> None:
        """Close the file."""
        with self._lock:
            self._env.close()

    def begin(self) -> int:
        """Return how often groups were served from here, this time included."""
        with self._lock:
            served = self._served + 1
            with self._env.begin(write=True) as txn:
                txn.put(_SERVED_KEY, msgspec.msgpack.encode(served))
            self._served = served
            return served

    def put(self, group: str, offsets: Iterable[CommittedOffset]) -> None:
        """Keep offsets of a group, in the place of those that it committed here before."""
        with self._lock:
            number = self._number
            rows = []
            for item in offsets:
                number += 1
                rows.append(Kept(group, QueueKey(item.topic_id, item.queue_id), item.offset, number))
            with self._env.begin(write=True) as txn:
                for row in rows:
                    txn.put(_key(row), msgspec.msgpack.encode((row.offset, row.number)))
            self._number = number
            self._rows.update({(row.group, row.queue): row for row in rows})

    def get(self, group: str, queue: QueueKey) -> int | None:
        """Return the offset that is kept for a group; None when there is none."""
        kept = self._rows.get((group, queue))
        return kept.offset if kept else None

    def rows(self) -> list[Kept]:
        """Return all that is kept, in the order in which it was committed."""
        with self._lock:
            return sorted(self._rows.values(), key=lambda kept: kept.number)

    def recorded(self, number: int) -> None:
        """Forget what was kept up to a number: a master has it."""
        with self._lock:
            gone = [kept for kept in self._rows.values() if kept.number <= number]
            if not gone:
                return
            with self._env.begin(write=True) as txn:
                for kept in gone:
                    txn.delete(_key(kept))
            for kept in gone:
                del self._rows[kept.group, kept.queue]


def _key(kept: Kept) -> bytes:
    return msgspec.msgpack.encode((kept.group, kept.queue.topic_id, kept.queue.queue_id))
