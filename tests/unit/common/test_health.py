"""The health of a server, for which nobody needs a key."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq_common.errors import SystemBusy
from minimq_common.wire import health_service, rpc
from minimq_common.wire.dispatcher import Dispatcher
from minimq_common.wire.health_service import HealthService

TIMEOUT_S = 60.0


def test_no_more_than_the_limit_watch_at_once_and_who_goes_leaves_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_service, "MAX_WATCHES", 2)
    asyncio.run(watch_in_turn())


async def watch_in_turn() -> None:
    server, dispatcher = grpc.aio.server(), Dispatcher()
    server.add_generic_rpc_handlers((dispatcher,))
    HealthService(dispatcher, ["minimq.v1.Broker"])
    address = await rpc.bind(server, "127.0.0.1:0")
    await server.start()
    async with rpc.open_aio_channel(address) as channel:
        stub: Any = health_pb2_grpc.HealthStub(channel)

        async def watch() -> Any:
            call = stub.Watch(health_pb2.HealthCheckRequest(), timeout=TIMEOUT_S)
            assert (await call.read()).status == health_pb2.HealthCheckResponse.NOT_SERVING
            return call

        first, _ = await watch(), await watch()
        with pytest.raises(grpc.aio.AioRpcError) as raised:
            await watch()
        error = rpc.from_rpc_error(raised.value, "server")
        assert isinstance(error, SystemBusy)
        assert "2 clients watch" in error.message
        assert (await stub.Check(health_pb2.HealthCheckRequest())).status == health_pb2.HealthCheckResponse.NOT_SERVING
        first.cancel()
        async with asyncio.timeout(TIMEOUT_S):
            while True:  # until the server has seen it
                try:
                    await watch()
                    break
                except grpc.aio.AioRpcError:
                    await asyncio.sleep(0.01)
    await server.stop(0)
