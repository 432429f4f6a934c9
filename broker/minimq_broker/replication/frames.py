"""Rules for both ends of a replication stream: heartbeats, timeouts, and how to read a frame."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from minimq_common.errors import DeadlineExceeded, Unavailable
from minimq_common.wire.bound_check import check_answer
from minimq_proto.v1 import replication_pb2

if TYPE_CHECKING:
    import grpc.aio

    SnapshotStream = grpc.aio.StreamStreamCall[replication_pb2.TakeSnapshot, replication_pb2.ReplicaFrame]
    ReplicaStream = grpc.aio.StreamStreamCall[replication_pb2.ReplicaRequest, replication_pb2.ReplicaFrame]

#: Either side ends a stream on which it receives nothing for this long.
SILENCE_S = 3.0
HEARTBEAT_S = 0.5
#: A master sends at least this many frames per lease, and slaves confirm them.
_FRAMES_PER_LEASE = 6
#: Longer than `SILENCE_S`: a broker may have to read much from its disk before its first frame.
FIRST_FRAME_TIMEOUT_S = 30.0


def heartbeat_s(lease_s: float) -> float:
    """Return the maximum seconds between two frames of a master with this lease."""
    return min(HEARTBEAT_S, lease_s / _FRAMES_PER_LEASE)


async def next_frame(
    stream: ReplicaStream | SnapshotStream, max_wait_s: float, peer: str
) -> replication_pb2.ReplicaFrame:
    """Return the next frame of a broker. Raises `DeadlineExceeded`, `Unavailable` and `InternalError`."""
    try:
        async with asyncio.timeout(max_wait_s):
            frame = await stream.read()
    except TimeoutError:
        raise DeadlineExceeded(f"{peer} sent nothing for {max_wait_s} s") from None
    if not isinstance(frame, replication_pb2.ReplicaFrame):
        raise Unavailable(f"{peer} has ended the stream")
    return check_answer(frame, peer)
