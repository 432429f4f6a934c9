"""Offsets that groups commit at a slave while there is no master: stored in a separate file, then handed over.

They are no entries of the log, which only a master writes. Each has a number, which separates those that a master has
recorded from later ones.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import lmdb
import msgspec

from minimq_broker.core.facts import CommittedOffset
from minimq_broker.core.state import QueueKey
from minimq_broker.core.term_history import LogPlace
from minimq_broker.store.lmdb_file import DAMAGE, DamagedFile, open_lmdb
from minimq_common.errors import StoreError, StoreFull
from minimq_common.sealed_rows import RowDamage, change, is_summed, seal, seal_all, unsealed

FILE_NAME = "kept-offsets.mdb"
#: Address space for the map; a row takes about 60 bytes.
_MAP_BYTES = 1 << 30
_SERVED_KEY = b"\0served"
#: From an older release: whatever was forced since, or before, counts instead.
_NOWHERE = LogPlace()


class Kept(NamedTuple):
    """An offset of a group, kept under a number; `forced` ones count even if they go back.

    `place` is how far the log of this replica was then: what was forced at a master since counts instead.
    """

    group: str
    queue: QueueKey
    offset: int
    number: int
    forced: bool = False
    place: LogPlace = _NOWHERE


class StandbyOffsets:
    """The file. Any thread may call any method; those that change something sync, and are not for an event loop."""

    def __init__(self, path: Path, *, readonly: bool = False) -> None:
        self._path = path
        self._env = open_lmdb(path, map_bytes=_MAP_BYTES, readonly=readonly)
        #: Held by writers, even while they sync.
        self._writing = threading.Lock()
        #: Protects the table of kept offsets, which is in the order of the numbers.
        self._lock = threading.Lock()
        try:
            rows, self._served = self._load(readonly=readonly)
        except (*DAMAGE, ValueError, TypeError) as error:
            self._env.close()
            raise DamagedFile(
                f"{path} is damaged: {error}: restore it from a copy, or move it away: then groups continue from the "
                "offsets that the master has recorded, and some messages are redelivered"
            ) from None
        except BaseException:
            self._env.close()
            raise
        self._rows = {(kept.group, kept.queue): kept for kept in sorted(rows, key=lambda kept: kept.number)}
        self._number = max((kept.number for kept in rows), default=0)

    def _load(self, *, readonly: bool) -> tuple[list[Kept], int]:
        with self._env.begin() as txn, txn.cursor() as cursor:
            is_sealed = is_summed(txn)
            stored = dict(unsealed(cursor) if is_sealed else cursor)
        if not is_sealed and not readonly:
            with self._env.begin(write=True) as txn:
                seal_all(txn, stored.items())
        served = int(msgspec.msgpack.decode(stored.pop(_SERVED_KEY, b"\0")))
        rows: list[Kept] = []
        for key, value in stored.items():
            group, topic_id, queue_id = msgspec.msgpack.decode(key, type=tuple[str, int, int])
            offset, number, forced, *place = msgspec.msgpack.decode(value)
            rows.append(Kept(group, QueueKey(topic_id, queue_id), offset, number, forced, LogPlace(*place)))
        return rows, served

    def close(self) -> None:
        """Close the file. Idempotent."""
        with self._writing:
            self._env.close()

    def begin(self) -> int:
        """Return how often groups were served from here, this time included. Raises as `put` does."""
        with self._writing:
            served = self._served + 1
            self._write([(_SERVED_KEY, msgspec.msgpack.encode(served))])
            self._served = served
            return served

    def put(
        self, group: str, offsets: Iterable[CommittedOffset], place: LogPlace = _NOWHERE, *, forced: bool = False
    ) -> None:
        """Keep offsets of a group, committed with the log at a place; they never go back unless they are forced."""
        with self._writing:
            number = self._number
            rows: dict[tuple[str, QueueKey], Kept] = {}
            for item in offsets:
                key = group, QueueKey(item.topic_id, item.queue_id)
                before = rows.get(key, self._rows.get(key))
                if before is not None and item.offset <= before.offset and not forced:
                    continue
                number += 1
                # What follows on one that was forced goes back with it.
                rows[key] = Kept(*key, item.offset, number, forced or (before is not None and before.forced), place)
            self._write([(_key(row), _value(row)) for row in rows.values()])
            with self._lock:
                self._number = number
                for key, row in rows.items():
                    self._rows.pop(key, None)  # it comes last
                    self._rows[key] = row

    def get(self, group: str, queue: QueueKey) -> Kept | None:
        """Return the offset of a group in one queue; None when there is nothing."""
        return self._rows.get((group, queue))

    def rows(self, after: int = 0) -> list[Kept]:
        """Return the offsets kept after a number, in commit order."""
        with self._lock:
            if self._number <= after:
                return []
            return [kept for kept in self._rows.values() if kept.number > after]

    def recorded(self, number: int) -> None:
        """Forget the offsets kept up to a number: a master has it. Raises as `put` does."""
        self.forget(lambda kept: kept.number <= number)

    def retain_topics(self, topic_ids: Iterable[int]) -> None:
        """Forget the offsets of all topics except these. Raises as `put` does."""
        known = frozenset(topic_ids)
        self.forget(lambda kept: kept.queue.topic_id not in known)

    def forget(self, is_gone: Callable[[Kept], bool]) -> None:
        """Forget some kept offsets. Raises as `put` does."""
        with self._writing:
            gone = [kept for kept in self._rows.values() if is_gone(kept)]
            if not gone:
                return
            self._write([(_key(kept), None) for kept in gone])
            with self._lock:
                for kept in gone:
                    del self._rows[kept.group, kept.queue]

    def _write(self, rows: list[tuple[bytes, bytes | None]]) -> None:
        try:
            with self._env.begin(write=True) as txn:
                change(txn, [(key, None if value is None else seal(key, value)) for key, value in rows])
        except (lmdb.DiskError, lmdb.MapFullError) as error:
            raise StoreFull(f"{self._path} cannot be written: {error}: free space on its disk") from error
        except (lmdb.Error, RowDamage) as error:
            raise StoreError(f"{self._path} cannot be written: {error}") from error


def _key(kept: Kept) -> bytes:
    return msgspec.msgpack.encode((kept.group, kept.queue.topic_id, kept.queue.queue_id))


def _value(kept: Kept) -> bytes:
    return msgspec.msgpack.encode((kept.offset, kept.number, kept.forced, *kept.place))
