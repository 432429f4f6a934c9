"""A peer that leaves while something is written to it is no fault of the server."""

from __future__ import annotations

import logging
import threading
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

import minimq_broker
import minimq_nameserver
from minimq_common.wire import rpc
from minimq_proto.v1 import replication_pb2, replication_pb2_grpc
from support.loop_thread import LoopThread

FRAME = replication_pb2.ReplicaFrame(entries=[bytes(1 << 20)])
#: Whether gRPC finds first that the peer has left, or that it reads no more, is up to chance.
CALLS = 40


class Server(replication_pb2_grpc.ReplicationServicer):
    def __init__(self) -> None:
        self.ended = threading.Semaphore(0)

    async def Replicate(  # type: ignore[override]  # grpc.aio takes handlers that write to the context as well
        self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Any
    ) -> None:
        try:
            while True:
                await rpc.write(context, FRAME)
        finally:
            self.ended.release()

    Snapshot = Replicate  # type: ignore[assignment]


def test_a_write_to_a_peer_that_has_left_is_a_cancelled_call(caplog: pytest.LogCaptureFixture) -> None:
    service = Server()

    async def start() -> tuple[grpc.aio.Server, str]:
        server = grpc.aio.server(options=rpc.SERVER_OPTIONS)
        replication_pb2_grpc.add_ReplicationServicer_to_server(service, server)
        address = await rpc.bind(server, "127.0.0.1:0")
        await server.start()
        return server, address

    with closing(LoopThread()) as loop:
        server, address = loop.run(start())
        for _ in range(CALLS):
            with rpc.open_channel(address) as channel:
                assert next(iter(replication_pb2_grpc.ReplicationStub(channel).Replicate(iter(())))) == FRAME
            assert service.ended.acquire(timeout=10)
        loop.run(server.stop(None))
    assert [record.message for record in caplog.records if record.levelno >= logging.WARNING] == []


def test_servers_write_to_streams_by_it_alone() -> None:
    sources = [
        path for package in (minimq_broker, minimq_nameserver) for path in Path(package.__path__[0]).rglob("*.py")
    ]
    assert sources
    direct = [path.name for path in sources if "context.write(" in path.read_text()]
    assert not direct
