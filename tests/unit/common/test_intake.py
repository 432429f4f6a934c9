"""Requests that have come in part: how much there may be, and whose connections are ended."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection, Iterable
from contextlib import closing

import pytest

from minimq_common import connections, intake
from minimq_common.connections import Traffic
from minimq_common.intake import Intake
from support.waiting import wait_until

MIB = 1 << 20
PATIENCE_S = 20.0


class World:
    """Connections as a test says they are. The counts of an intake are by address, traffic is in MiB."""

    def __init__(self, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(intake, "_LOOK_S", 0.01)
        monkeypatch.setattr(intake, "_LOOK_AT_ALL_S", 0.01)
        self.received: dict[str, int] = {}
        self.looks = 0
        self.ended: list[str] = []
        self.intake = Intake(limit * MIB, self._traffic, self._cut)

    def come(self, address: str, received: int, taken: int) -> None:
        self.received[address] = received
        self.intake.of(f"ipv4:{address}").bytes = taken * MIB

    async def look(self) -> None:
        """Wait for two whole looks."""
        until = self.looks + 3
        while self.looks < until:  # noqa: ASYNC110 - another task's doing
            await asyncio.sleep(0.005)

    def _traffic(self) -> Iterable[Traffic]:
        self.looks += 1
        return [Traffic(address, received * MIB, 0) for address, received in self.received.items()]

    def _cut(self, addresses: Collection[str]) -> None:
        self.ended += addresses
        for address in addresses:
            del self.received[address]


def run(world: World, test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        watching = asyncio.create_task(world.intake.watch())
        async with asyncio.timeout(PATIENCE_S):
            await test()
        watching.cancel()

    asyncio.run(limited())


pytestmark = pytest.mark.skipif(not connections.TELLS_TRAFFIC, reason="the kernel does not tell it")


def test_who_holds_most_is_ended_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_STUCK_S", 1e9)
    world = World(100, monkeypatch)

    async def test() -> None:
        world.come("a:1", 1000, 950)  # 1 % of what was taken in counts as frames around it
        world.come("b:1", 45, 0)
        await world.look()
        assert world.ended == []
        assert 75 * MIB < world.intake.bytes < 90 * MIB
        world.come("c:1", 61, 0)
        for number in range(10):
            world.come(f"small:{number}", 8, 0)
        await world.look()
        assert world.ended == ["c:1", "b:1", "a:1"]  # and none that holds no more than it may
        assert world.intake.ended == 3

    run(world, test)


def test_a_connection_that_takes_no_part_may_hold_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(intake, "_STUCK_S", 0.05)
    world = World(20, monkeypatch)

    async def test() -> None:
        world.come("stuck:1", 7, 0)
        world.come("moves:1", 7, 0)
        for taken in range(1, 100):
            world.come("moves:1", 7 + taken, taken)
            await asyncio.sleep(0.005)
        world.come("other:1", 7, 0)
        world.come("another:1", 7, 0)
        while "stuck:1" not in world.ended:
            world.come("moves:1", 9 + world.intake.of("ipv4:moves:1").bytes // MIB, world.looks + 200)
            await asyncio.sleep(0.005)
        assert "moves:1" not in world.ended

    run(world, test)
    assert "peer=stuck:1 held_bytes=6291456 limit_bytes=20971520" in caplog.text


def test_the_counts_of_connections_that_have_gone_go_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(100, monkeypatch)

    async def test() -> None:
        world.come("a:1", 5, 2)
        del world.received["a:1"]
        await world.look()
        assert world.intake.of("ipv4:a:1").bytes == 0

    run(world, test)


def test_the_kernel_tells_the_traffic_of_a_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.sendall(bytes(1000))
        server.sendall(bytes(300))
        address = f"127.0.0.1:{client.getsockname()[1]}"

        def seen() -> list[Traffic]:
            return [each for each in connections.traffic() if each.address == address]

        wait_until(lambda: seen() == [Traffic(address, 1000, 300)])
        client.close()
        server.close()
