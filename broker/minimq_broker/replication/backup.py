"""A copy of the data of a broker, as a separate data directory: taken while the broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from minimq_broker.core.upkeep.retention import NOTHING_NEEDED
from minimq_broker.replication.copying import FRAME_BYTES, CopyExtent, fill, state_frames
from minimq_broker.replication.frames import FIRST_WORD_S, SILENCE_S, next_frame
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.services.stream_writer import StreamWriter
from minimq_broker.store.checkpoint import Snapshot
from minimq_broker.store.upkeep.copy import check_free
from minimq_common.errors import SystemBusy
from minimq_common.security.channel_security import PLAIN, ChannelSecurity
from minimq_common.wire import rpc
from minimq_common.wire.channels import explained
from minimq_common.wire.unsent import Unsent
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.replication_pb2_grpc import ReplicationAsyncStub

Moved = Callable[[int], None]

#: A copy without progress for this many seconds no longer prevents deletions, and makes room for another one.
_STUCK_S = 10.0
#: Maximum number of concurrent copies: each reads the whole log, and holds the state.
MAX_COPIES = 4
#: Retry delay after a refusal, in seconds.
_COME_BACK_S = 5.0


@dataclass(slots=True)
class _Copy:
    peer: str
    position: int
    moved_at: float


class Snapshots:
    """Sends copies of the data of a broker. Lives on the loop of the engine."""

    def __init__(self, handle: StoreHandle, unsent: Unsent) -> None:
        self._handle, self._unsent = handle, unsent
        self._loop = asyncio.get_running_loop()
        self._copies: list[_Copy] = []

    def lowest_needed(self) -> int:
        """Return the log position from which running copies need entries."""
        since = self._loop.time() - _STUCK_S
        return min((copy.position for copy in self._copies if copy.moved_at > since), default=NOTHING_NEEDED)

    async def send(self, context: Any) -> None:
        """Send all that is confirmed now, from the oldest entry on."""
        self._admit()
        copy = _Copy(context.peer(), self._handle.store.log.start, self._loop.time())
        self._copies.append(copy)
        try:
            await self._send(copy, context)
        finally:
            self._copies.remove(copy)

    def _admit(self) -> None:
        if len(self._copies) < MAX_COPIES:
            return
        since = self._loop.time() - _STUCK_S
        self._unsent.give_up({copy.peer for copy in self._copies if copy.moved_at <= since})
        raise SystemBusy(
            f"{len(self._copies)} copies of this broker are running, which is the limit: retry when one is done",
            retry_after_s=_COME_BACK_S,
            limit="copies",
        )

    async def _send(self, copy: _Copy, context: Any) -> None:
        writer: StreamWriter[replication_pb2.ReplicaFrame] = StreamWriter(context, self._unsent)

        async def write(frame: replication_pb2.ReplicaFrame) -> None:
            frame.end = end
            await writer.write(lambda: frame)
            copy.moved_at = self._loop.time()

        snapshot, extent, end = await asyncio.to_thread(self._begin, copy)
        for frame in state_frames(snapshot, extent):
            await write(frame)
        while copy.position < end:
            position, entries = await asyncio.to_thread(self._entries, copy.position, end)
            await write(replication_pb2.ReplicaFrame(position=position, entries=entries))
            copy.position = position + sum(map(len, entries))

    def _begin(self, copy: _Copy) -> tuple[Snapshot, CopyExtent, int]:
        with self._handle.reading() as store:
            snapshot = store.snapshot()
            copy.position = store.log.start
            extent = CopyExtent(store.log.start, store.log.complete_from)
            return snapshot, extent, max(store.confirmed, snapshot.position)

    def _entries(self, position: int, end: int) -> tuple[int, list[bytes]]:
        with self._handle.reading() as store:
            return store.part(position, min(FRAME_BYTES, end - position))


async def take_snapshot(
    address: str,
    directory: Path,
    segment_bytes: int,
    began: Callable[[int, int], Moved],
    security: ChannelSecurity = PLAIN,
) -> tuple[int, int]:
    """Make a data directory with the current data of a broker. Returns from where to where its log goes."""
    await asyncio.to_thread(check_free, directory)  # before the broker begins to send
    async with rpc.open_aio_channel(address, security.trust()) as channel:
        stub = cast("ReplicationAsyncStub", replication_pb2_grpc.ReplicationStub(channel))
        stream, peer = stub.Snapshot(), f"broker {address}"

        try:
            await stream.write(replication_pb2.TakeSnapshot())
            first = await next_frame(stream, FIRST_WORD_S, peer)
            end = await fill(
                directory,
                segment_bytes,
                first,
                lambda: next_frame(stream, SILENCE_S, peer),
                until=first.end,
                moved=began(first.copy.start, first.end),
            )
            return first.copy.start, end
        except grpc.RpcError as error:
            raise await explained(error, "broker", address, security.trust()) from None
        finally:
            stream.cancel()
