"""Channels to servers that come back at another address, under the same name."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import grpc
import grpc.aio
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from minimq_common.wire import channels as module
from minimq_common.wire.channels import Channels


def closed_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1"])
def test_a_channel_to_a_name_that_leads_elsewhere_is_replaced_while_it_is_not_connected(
    monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setattr(module, "_LOOK_UP_S", 0.0)
    found = ["127.0.0.1"]
    looked = 0

    async def getaddrinfo(*_: object) -> list[Any]:
        nonlocal looked
        looked += 1
        if not found:
            raise OSError("not found")
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in found]

    async def test() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "getaddrinfo", getaddrinfo)
        address = f"{host}:{closed_port()}"
        async with asyncio.timeout(20):
            opened: Channels[Any] = Channels(health_pb2_grpc.HealthStub)
            first = opened.stub(address)
            for place, is_same in ((["127.0.0.1"], True), ([], True), (["127.0.0.2"], host != "localhost")):
                found[:] = place
                before = looked
                with pytest.raises(grpc.aio.AioRpcError):
                    await first.Check(health_pb2.HealthCheckRequest(), timeout=5)
                while host == "localhost" and looked < before + 3 and opened.stub(address) is first:  # noqa: ASYNC110 - nothing tells of it
                    await asyncio.sleep(0.01)
                assert (opened.stub(address) is first) is is_same
            await opened.aclose()

    asyncio.run(test())
    assert bool(looked) is (host == "localhost")
