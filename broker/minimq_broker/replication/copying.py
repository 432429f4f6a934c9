"""A copy of all data of a master, which replaces that of a slave."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from minimq_broker.services.store_handle import StoreHandle, uncancellable
from minimq_broker.store.checkpoint import Snapshot
from minimq_broker.store.upkeep.copy import StoreCopy
from minimq_common.errors import StoreError
from minimq_proto.v1 import replication_pb2

log = logging.getLogger(__name__)

#: Entries or rows in one frame, in bytes; the last one may overshoot it.
FRAME_BYTES = 1 << 20

NextFrame = Callable[[], Awaitable[replication_pb2.ReplicaFrame]]


class CopyExtent(NamedTuple):
    """The log positions from which on a log has entries, and has all of them."""

    start: int
    complete_from: int


def state_frames(snapshot: Snapshot, extent: CopyExtent, log_id: str = "") -> Iterator[replication_pb2.ReplicaFrame]:
    """Yield the frames that begin a copy: what it is, and all rows of the state."""
    copy = replication_pb2.CopyAll(start=extent.start, applied=snapshot.position, complete_from=extent.complete_from)
    yield replication_pb2.ReplicaFrame(copy=copy, log_id=log_id)
    part: list[replication_pb2.StateRow] = []
    size = 0
    for key, value in snapshot.rows:
        part.append(replication_pb2.StateRow(key=key, value=value))
        size += len(key) + len(value)
        if size >= FRAME_BYTES:
            yield replication_pb2.ReplicaFrame(rows=part)
            part, size = [], 0
    yield replication_pb2.ReplicaFrame(rows=part, rows_end=True)


async def take_copy(handle: StoreHandle, first: replication_pb2.ReplicaFrame, next_frame: NextFrame) -> None:
    """Put a copy in the place of all that a store has. Whatever comes in between leaves an empty store."""

    async def make(path: Path, segment_bytes: int) -> None:
        await fill(path, segment_bytes, first, next_frame, until=first.copy.applied, replace=True)

    await handle.replace(make, "this broker copies everything from its master")


async def fill(
    path: Path,
    segment_bytes: int,
    first: replication_pb2.ReplicaFrame,
    next_frame: NextFrame,
    *,
    until: int,
    replace: bool = False,
    moved: Callable[[int], None] = lambda position: None,
) -> int:
    """Make a data directory of a copy. Returns the log position up to which it goes."""
    rows: list[tuple[bytes, bytes]] = []
    frame = first
    while not frame.rows_end:
        frame = await next_frame()
        rows += ((row.key, row.value) for row in frame.rows)
    snapshot, start, complete_from = Snapshot(first.copy.applied, rows), first.copy.start, first.copy.complete_from
    made: list[StoreCopy] = []  # whatever becomes of this task: a copy that stays open keeps the directory locked

    def make() -> None:
        made.append(StoreCopy(path, snapshot, start, segment_bytes, complete_from=complete_from, replace=replace))

    try:
        await uncancellable(asyncio.to_thread(make))
        [copy] = made
        while copy.position < until:
            frame = await next_frame()
            if frame.position > copy.position:
                await uncancellable(asyncio.to_thread(copy.skip_to, frame.position))
            if frame.entries and frame.position != copy.position:
                raise StoreError(f"the master sent entries at {frame.position}, {copy.position} was expected")
            if frame.entries:
                await uncancellable(asyncio.to_thread(copy.put, frame.entries))
            moved(copy.position)
        await uncancellable(asyncio.to_thread(copy.finish))
        log.info("replication: copied from=%d to=%d rows=%d", start, copy.position, len(rows))
        return copy.position
    finally:
        for copy in made:
            copy.close()
