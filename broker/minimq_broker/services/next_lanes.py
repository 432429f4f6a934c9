"""The lanes of messages of a FIFO topic that were never delivered."""

from __future__ import annotations

import struct

import lmdb

from minimq_broker.core.pop_lanes import Stretch
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from minimq_broker.store.rows import ReadLimits
from minimq_common.batch import read_lane
from minimq_common.errors import MiniMQError

#: Batches and bytes of one lookup, which is made while fewer stretches than that are known.
_LOOK_BATCHES = 256
_LOOK_BYTES = 1 << 20
#: Queues whose lanes are kept.
_MAX_QUEUES = 100


class NextLanes:
    """Looks up the lanes of the next batches of queues for one group: each batch once, many batches at a time."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._known: dict[QueueKey, tuple[Stretch, ...]] = {}

    def of(self, queue: QueueKey, first: int, end: int) -> tuple[Stretch, ...]:
        """Return the lanes of messages from an offset on, without a gap; none at the end of the queue."""
        known = self._known.get(queue, ())
        if known and known[0].first <= first <= known[-1].end:
            known = tuple(stretch for stretch in known if stretch.end > first)
        else:
            known = ()
        at = known[-1].end if known else first
        if len(known) < _LOOK_BATCHES and at < end:
            known += self._looked_up(queue, at, end)
        if len(self._known) >= _MAX_QUEUES:
            self._known.clear()
        self._known[queue] = known
        return known

    def _looked_up(self, queue: QueueKey, at: int, end: int) -> tuple[Stretch, ...]:
        store = self._engine.store
        found: list[Stretch] = []
        try:
            batches, _ = store.search(queue, at, ReadLimits(end - at, _LOOK_BYTES, max_rows=_LOOK_BATCHES))
            lanes = [(batch.base_offset, batch.base_offset + batch.count, read_lane(batch.data)) for batch in batches]
        except (MiniMQError, lmdb.Error, struct.error):  # who gets them is told
            lanes = []
        for first, behind, lane in lanes or [(at, self._behind(queue, at, end), 0)]:
            if first > at:
                found.append(Stretch(at, first, 0))  # they are lost: who gets them is told
                at = first
            if found and lane == found[-1].lane:
                found[-1] = Stretch(found[-1].first, behind, lane)
            else:
                found.append(Stretch(at, behind, lane))
            at = behind
        return tuple(found)

    def _behind(self, queue: QueueKey, at: int, end: int) -> int:
        try:
            row = self._engine.store.log.row_at(queue, at)
        except (MiniMQError, lmdb.Error, struct.error):
            row = None
        if row is None:
            return at + 1
        return min(end, row.base_offset if row.base_offset > at else row.last_offset + 1)
