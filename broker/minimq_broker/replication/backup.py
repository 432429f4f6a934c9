"""A copy of what a broker has, as a data directory of its own: taken while the broker runs."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from minimq_broker.replication.copying import FRAME_BYTES, fill, state_frames
from minimq_broker.replication.feed import SILENCE_S
from minimq_broker.services.engine import Engine
from minimq_broker.store.message_store import MessageStore
from minimq_common import rpc
from minimq_common.errors import DeadlineExceeded, Unavailable
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.replication_pb2_grpc import ReplicationAsyncStub

#: The broker may have much to read from its disk before it says the first word, in seconds.
_FIRST_WORD_S = 30.0


async def send_snapshot(engine: Engine, context: Any) -> None:  # noqa: ANN401 - the context of the stream
    """Send all that is confirmed now, from the oldest entry on.

    Raises:
        CopyNeeded: retention was faster; the copy has to begin anew.
        SystemBusy: nobody may look into the store at this moment.
    """
    store = engine.store
    snapshot = await asyncio.to_thread(store.snapshot)
    position, end = store.log.start, max(store.confirmed, snapshot.position)
    for frame in state_frames(snapshot, position):
        frame.end = end
        await context.write(frame)
    while position < end:
        entries = await asyncio.to_thread(_entries, engine.store, position, end)
        await context.write(replication_pb2.ReplicaFrame(position=position, entries=entries, end=end))
        position += sum(map(len, entries))


def _entries(store: MessageStore, position: int, end: int) -> list[bytes]:
    return store.entries(position, min(FRAME_BYTES, end - position))


async def take_snapshot(address: str, directory: Path, segment_bytes: int) -> tuple[int, int]:
    """Make a data directory of what a broker has now. Returns from where to where its log goes.

    Args:
        address: HOST:PORT of the broker.
        directory: does not exist, is empty, or holds a copy that was interrupted.
        segment_bytes: size of its segments.

    Raises:
        StoreError: the directory holds something else, or cannot be written.
        MiniMQError: the broker is not reached, or failed.
    """
    async with rpc.open_aio_channel(address) as channel:
        stub = cast("ReplicationAsyncStub", replication_pb2_grpc.ReplicationStub(channel))
        stream = stub.Replicate()

        async def next_frame(patience_s: float = SILENCE_S) -> replication_pb2.ReplicaFrame:
            try:
                async with asyncio.timeout(patience_s):
                    frame = await stream.read()
            except TimeoutError:
                raise DeadlineExceeded(f"broker {address} said nothing for {patience_s} s") from None
            if not isinstance(frame, replication_pb2.ReplicaFrame):
                raise Unavailable(f"broker {address} ended the copy before its end: take it anew")
            return frame

        try:
            await stream.write(replication_pb2.ReplicaRequest(snapshot=replication_pb2.TakeSnapshot()))
            first = await next_frame(_FIRST_WORD_S)
            end = await fill(directory, segment_bytes, first, next_frame, until=first.end)
            return first.copy.start, end
        except grpc.RpcError as error:
            raise rpc.from_rpc_error(error, f"broker {address}") from None
        finally:
            stream.cancel()
