"""The newest offset of each key, for compaction: bounded in memory, and never wrong about a key."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b
from itertools import pairwise, repeat
from operator import le

from minimq_broker.state.state import QueueKey
from minimq_common.batch.header import SEPARATOR, Section
from minimq_common.batch.records import RecordBatch

_HASH_BYTES = 16
_SEPARATOR = SEPARATOR.encode()
#: Key of messages without one. They are never removed.
NO_KEY = b""


def key_names(records: RecordBatch) -> list[bytes]:
    """Return the identity of the first key of each record. Raises `CorruptBatch`."""
    keys = records.raw_keys()
    if _SEPARATOR in bytes(records.section(Section.KEYS)):
        keys = [key.partition(_SEPARATOR)[0] for key in keys]
    return [key if len(key) < _HASH_BYTES else blake2b(key, digest_size=_HASH_BYTES).digest() for key in keys]


def are_tombstones(records: RecordBatch) -> list[bool]:
    """Return for each record whether its body is empty. Raises `CorruptBatch`."""
    return [start == end for start, end in pairwise(records.body_ends())]


class NewestKeys:
    """The newest offsets of keys in some queues."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._count = 0
        self._offsets: defaultdict[QueueKey, dict[bytes, int]] = defaultdict(dict)

    @property
    def is_full(self) -> bool:
        """True if no further batch may be added."""
        return self._count >= self._most

    def add(self, queue: QueueKey, names: Sequence[bytes], offsets: Sequence[int]) -> None:
        """Add the keys of a batch. Batches of a queue must be added in the order of their offsets."""
        newest = self._offsets[queue]
        before = len(newest)
        newest.update(zip(names, offsets, strict=True))
        newest.pop(NO_KEY, None)
        self._count += len(newest) - before

    def remain(self, queue: QueueKey, names: Sequence[bytes], offsets: Sequence[int]) -> list[bool]:
        """Return for each record whether it remains: no newer one with its key was added."""
        newest = self._offsets.get(queue)
        if not newest:
            return [True] * len(names)
        return list(map(le, map(newest.get, names, repeat(-1)), offsets))
