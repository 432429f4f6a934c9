"""The repair of damaged segments of a slave from its master, before it follows again."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from minimq_broker.backup.copy import SegmentCopy, placed
from minimq_broker.calls.store_handle import StoreHandle, uncancellable
from minimq_broker.features.retention.retention import NOTHING_NEEDED
from minimq_broker.metrics.counters import Counters
from minimq_broker.replication.frames import FIRST_FRAME_TIMEOUT_S, SILENCE_S, next_frame
from minimq_common.errors import CorruptEntry, StoreError
from minimq_proto.v1 import replication_pb2

if TYPE_CHECKING:
    from minimq_broker.replication.frames import ReplicaStream

log = logging.getLogger(__name__)


class SegmentRepair:
    """Repairs one segment. Belongs to the loop of the engine."""

    def __init__(self, handle: StoreHandle, counters: Counters, start: int, peer: str) -> None:
        self._handle, self._counters = handle, counters
        self._store = handle.store
        self._start = start
        self._peer = peer
        self._reason = self._store.log.damage.reasons.get(start, "")

    async def seal(self) -> int:
        """Stop writing to the segment and return its end; its start if it is empty."""
        store = self._store

        def roll() -> None:
            if store.log.active.start == self._start and store.end != self._start:
                store.log.roll(store.end)

        await uncancellable(asyncio.to_thread(store.call, roll))
        starts = [segment.start for segment in store.log.segments]
        return min((start for start in starts if start > self._start), default=self._start)

    async def take(self, stream: ReplicaStream, end: int) -> None:
        """Replace the segment by the master's entries up to `end`. The caller has read the `go_on` frame."""
        frame = await next_frame(stream, FIRST_FRAME_TIMEOUT_S, self._peer)
        at = max(frame.position, self._start)
        made: SegmentCopy | None = None
        try:
            if at < end:
                room = self._store.options.segment_bytes
                path = self._store.log.path / f"{at:020d}.new"
                made = await uncancellable(asyncio.to_thread(SegmentCopy, path, at, room))
                await self._fill(made, frame, stream, end)
            await uncancellable(asyncio.to_thread(self._put_in, made))
        except CorruptEntry as error:
            log.error(
                "replication: a segment is damaged here and at the master segment=%d here=%s master=%s",
                self._start,
                self._reason,
                error,
            )
            self._handle.damage.tell(self._start, self._reason)
            self._store.log.clear_damage_mark(self._start)
        finally:
            if made is not None:
                made.give_up()

    async def _fill(
        self, made: SegmentCopy, frame: replication_pb2.ReplicaFrame, stream: ReplicaStream, end: int
    ) -> None:
        while True:
            if not made.position <= frame.position <= end:
                raise StoreError(f"the master sent entries at {frame.position}, {made.position} was expected")
            made.skip_to(frame.position)
            await uncancellable(asyncio.to_thread(made.put, placed(frame.entries, frame.position)))
            if made.position >= end:
                break
            frame = await next_frame(stream, SILENCE_S, self._peer)
        if made.position != end:
            raise StoreError(f"the master sent entries up to {made.position}, {end} was expected")
        if made.has_gap and end > self._store.saved_position:
            raise StoreError(f"the master has rewritten entries up to {end}, before they are saved here: try again")

    def _put_in(self, made: SegmentCopy | None) -> None:
        if made is None or made.start != self._start:
            self._remove_up_to_it()
        if made is not None:
            made.finish(made.position if made.has_gap else 0)
            with self._handle.reading() as store:
                if not store.log.install_repaired(made.path, made.start):
                    return  # retention has deleted the segment meanwhile
            self._counters.segments_repaired += 1
            log.warning(
                "replication: a damaged segment was repaired segment=%d bytes=%d reason=%s of=%s",
                made.start,
                made.position - made.start,
                self._reason,
                self._peer,
            )

    def _remove_up_to_it(self) -> None:
        with self._handle.reading() as store:
            while store.log.start <= self._start:
                if not store.old.remove_first(NOTHING_NEEDED):
                    raise StoreError(
                        f"the segment {self._start} is damaged, its master no longer has it, and recovery needs it: "
                        "empty the data directory, or see minimq-broker rebuild"
                    )
        log.error(
            "replication: a damaged segment was deleted, since its master no longer has all of it segment=%d reason=%s",
            self._start,
            self._reason,
        )
