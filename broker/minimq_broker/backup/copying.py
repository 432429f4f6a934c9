"""Copies of all data of a broker: one that replaces that of a slave, and one in a data directory of its own."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from minimq_broker.backup.copy import StoreCopy, check_free
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import FrameStream
from minimq_broker.commit.off_loop import in_steps, uncancellable
from minimq_broker.commit.store import Store
from minimq_broker.log.checkpoint import Snapshot
from minimq_broker.log.file_checksum import verify_checksum
from minimq_broker.log.page_walk import PageDamage
from minimq_broker.replication.frames import FIRST_FRAME_TIMEOUT_S, SILENCE_S, next_frame
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_broker.state.state import State
from minimq_common.errors import CorruptEntry, StoreError, SystemBusy, Unavailable
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_common.wire.unsent import UnsentBudget
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.replication_pb2_grpc import ReplicationAsyncStub

log = logging.getLogger(__name__)

#: Target bytes of entries or rows per frame. The last entry or row may exceed it.
FRAME_BYTES = 1 << 20

NextFrame = Callable[[], Awaitable[replication_pb2.ReplicaFrame]]


def state_frames(
    snapshot: Snapshot, start: int, complete_from: int, log_id: str
) -> Iterator[replication_pb2.ReplicaFrame]:
    """Yield the first frames of a copy: the extent of the log, then all rows of the state."""
    copy = replication_pb2.CopyAll(start=start, applied=snapshot.position, complete_from=complete_from)
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


@asynccontextmanager
async def copying(
    stub: ReplicationAsyncStub, peer: str
) -> AsyncIterator[tuple[replication_pb2.ReplicaFrame, NextFrame]]:
    """Request all data of a broker; yield the first frame, and a function that waits for the next one."""
    stream = stub.Snapshot()
    try:
        await stream.write(replication_pb2.TakeSnapshot())
        first = await next_frame(stream, FIRST_FRAME_TIMEOUT_S, peer)
        while not first.HasField("copy"):  # the source verifies its files
            first = await next_frame(stream, SILENCE_S, peer)
        yield first, lambda: next_frame(stream, SILENCE_S, peer)
    finally:
        stream.cancel()


async def take_copy(engine: Engine, stub: ReplicationAsyncStub, peer: str, log_id: str) -> None:
    """Replace the content of a store by a copy from its master. If interrupted, the store is left empty."""
    async with copying(stub, peer) as (first, following):
        if first.log_id != log_id:
            raise Unavailable(f"{peer} has changed its log: it is {first.log_id} now, and was {log_id}")
        log.info("replication: copying everything from=%d to=%d source=%s", first.copy.start, first.end, peer)

        async def make(path: Path, segment_bytes: int) -> None:
            await fill(path, segment_bytes, first, following, until=first.end, replace=True)

        await engine.replace(make)


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
    """Fill a data directory with a copy. Returns the position at which its log ends."""
    rows: list[tuple[bytes, bytes]] = []
    frame = first
    while not frame.rows_end:
        frame = await next_frame()
        rows += ((row.key, row.value) for row in frame.rows)
    snapshot, start, complete_from = Snapshot(first.copy.applied, rows), first.copy.start, first.copy.complete_from
    made: list[StoreCopy] = []  # kept for `finally`: an open copy keeps the directory locked

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


Moved = Callable[[int], None]

_CUT = "the log of this broker was cut, or replaced, while it was copied: copy it again"
#: A copy without progress for this long no longer prevents deletions, and is ended if another one needs its place.
_STUCK_S = 10.0
#: Maximum concurrent copies: each reads the whole log and holds the state in memory.
MAX_COPIES = 4


@dataclass(slots=True)
class _Copy:
    position: int
    moved_at: float


class Snapshots:
    """Sends copies of the data of a broker. Belongs to the loop of the engine."""

    def __init__(self, store: Store, unsent: UnsentBudget) -> None:
        self._store, self._unsent = store, unsent
        self._loop = asyncio.get_running_loop()
        self._copies: list[_Copy] = []

    def lowest_needed(self) -> int:
        """Return the log position from which on running copies need entries. Thread-safe."""
        since = self._loop.time() - _STUCK_S
        return min((copy.position for copy in [*self._copies] if copy.moved_at > since), default=NOTHING_NEEDED)

    async def send(self, context: Any) -> None:
        """Send the state and the log, as confirmed now. Raises `SystemBusy` if too many copies are running."""
        if len(self._copies) >= MAX_COPIES:
            text = f"{len(self._copies)} copies of this broker are running, which is the limit: retry when one is done"
            raise SystemBusy(text, limit="copies")
        copy = _Copy(self._store.log.start, self._loop.time())
        self._copies.append(copy)
        try:
            await self._send(copy, context)
        finally:
            self._copies.remove(copy)

    async def _send(self, copy: _Copy, context: Any) -> None:
        frames, end = FrameStream(context, self._unsent), 0

        async def write(frame: replication_pb2.ReplicaFrame) -> None:
            frame.end = end
            await frames.write(lambda: frame)
            copy.moved_at = self._loop.time()

        # Before the first frame of the copy, for which a slave deletes its own data.
        if not await in_steps(self._store, _verify_all, lambda _: write(replication_pb2.ReplicaFrame())):
            raise SystemBusy(_CUT)
        snapshot, complete_from, end, state = await asyncio.to_thread(self._begin, copy)
        for frame in state_frames(snapshot, copy.position, complete_from, state.log_id):
            await write(frame)
        while copy.position < end:
            position, entries = await asyncio.to_thread(self._entries, copy.position, end, state)
            await write(replication_pb2.ReplicaFrame(position=position, entries=entries))
            copy.position = position + sum(map(len, entries))

    def _begin(self, copy: _Copy) -> tuple[Snapshot, int, int, State]:
        store = self._store
        with store.reading(), store.log.kept:
            snapshot = store.snapshot()
            copy.position = store.log.start
            end = max(store.confirmed, snapshot.position)
            return snapshot, store.log.complete_from, end, store.state

    def _entries(self, position: int, end: int, state: State) -> tuple[int, list[bytes]]:
        store = self._store
        with store.reading():
            if store.state is not state:  # the log was cut or replaced
                raise SystemBusy(_CUT)
            return store.part(position, min(FRAME_BYTES, end - position))


def _verify_all(store: Store) -> Generator[None, None, bool]:
    """Verify the checksums of all sealed segments. Raises `CorruptEntry`."""
    for segment in store.log.segments[:-1]:
        try:
            yield from verify_checksum(segment.path)
        except FileNotFoundError:  # removed meanwhile
            continue
        except PageDamage as error:
            store.log.report_damage(segment.start, str(error))
            raise CorruptEntry(
                f"{segment.path.name} of this broker is damaged ({error}): copy another replica (minimq cluster "
                "status), or restore a backup"
            ) from None
    return True


async def take_snapshot(
    address: str,
    directory: Path,
    segment_bytes: int,
    began: Callable[[int, int], Moved],
    security: ChannelSecurity = PLAIN,
) -> tuple[int, int]:
    """Fill a data directory with the current data of a broker. Returns the start and the end of its log."""
    await asyncio.to_thread(check_free, directory)  # before the broker begins to send
    async with rpc.open_aio_channel(address, security.trust()) as channel:
        stub = cast("ReplicationAsyncStub", replication_pb2_grpc.ReplicationStub(channel))
        try:
            async with copying(stub, f"broker {address}") as (first, following):
                moved = began(first.copy.start, first.end)
                end = await fill(directory, segment_bytes, first, following, until=first.end, moved=moved)
                return first.copy.start, end
        except grpc.RpcError as error:
            raise rpc.from_rpc_error(error, f"broker {address}") from None
