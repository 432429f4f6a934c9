"""Room for what clients have not read: who gets it, who waits, and who has to go."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Collection
from contextlib import closing
from pathlib import Path

import pytest

from minimq_common.wire import unsent
from minimq_common.wire.unsent import SMALL_BYTES, UnsentBudget
from support.waiting import wait_until

LIMIT = 400_000
LARGE = SMALL_BYTES + 1
PATIENCE_S = 20.0
PEER, OTHER = "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:2"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(PATIENCE_S):
            await test()

    asyncio.run(limited())


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_large_message_waits_while_a_small_one_has_room() -> None:
    async def test() -> None:
        room = UnsentBudget(LIMIT, lambda _: None)
        written = room.begin(PEER, 300_000)
        assert room.is_tight
        waiting = asyncio.create_task(room.room(LARGE))
        await room.room(SMALL_BYTES)
        await settled()
        assert not waiting.done()
        room.end(written)
        await waiting

    run(test)


def test_those_who_wait_come_one_after_the_other() -> None:
    """No more of them than there is room for, whoever leaves meanwhile."""

    async def test() -> None:
        room = UnsentBudget(LIMIT, lambda _: None)
        written = room.begin(PEER, LIMIT)
        done = []

        async def wait(number: int) -> None:
            await room.room(LARGE)
            done.append(number)
            room.begin(OTHER, 200_000)

        tasks = [asyncio.create_task(wait(number)) for number in range(5)]
        await settled()
        tasks[1].cancel()
        room.end(written)
        tasks[0].cancel()  # which was just told to go on
        await settled()
        assert done == [2, 3]
        assert room.waiting == 1
        tasks[4].cancel()
        await asyncio.wait(tasks)
        assert room.waiting == 0

    run(test)


def test_who_does_not_read_is_ended_once_somebody_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unsent, "STUCK_S", 0.05)
    monkeypatch.setattr(unsent, "SLOWEST_BYTES_PER_S", 1 << 40)
    monkeypatch.setattr(unsent, "_CHECK_INTERVAL_S", 0.01)

    async def test() -> None:
        def shut_down(peers: Collection[str]) -> None:
            ended.append(set(peers))
            loop.call_soon_threadsafe(room.end, stuck)

        ended: list[set[str]] = []
        loop = asyncio.get_running_loop()
        room = UnsentBudget(LIMIT, shut_down)
        stuck = room.begin(PEER, LIMIT)
        await asyncio.sleep(0.1)
        assert not ended  # nobody needs the room
        await room.room(0)
        assert ended == [{PEER}]
        assert room.ended == 1
        assert room.bytes == 0

    run(test)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "peer=ipv4:127.0.0.1:1 unsent_bytes=400000 limit_bytes=400000" in caplog.text


@pytest.mark.parametrize(
    ("host", "peer"),
    [("127.0.0.1", "ipv4:127.0.0.1:"), ("127.0.0.1", "ipv6:%5B::ffff:127.0.0.1%5D:"), ("::1", "ipv6:%5B::1%5D:")],
)
def test_only_the_named_connection_is_shut_down(host: str, peer: str) -> None:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, 0), family=family)
    except OSError:
        pytest.skip(f"this machine has no {host}")
    with closing(listener):
        pairs = [(socket.create_connection(listener.getsockname()[:2]), listener.accept()[0]) for _ in range(2)]
        (client, server), (other, kept) = pairs
        for each in (client, other):
            each.settimeout(PATIENCE_S)
        open_files = len([*Path("/dev/fd").iterdir()])
        unsent.shut_down({f"{peer}{client.getsockname()[1]}", PEER})
        wait_until(lambda: len([*Path("/dev/fd").iterdir()]) <= open_files)  # other threads may have some open
        assert client.recv(1) == b""
        kept.sendall(b"x")
        assert other.recv(1) == b"x"
        for end in (client, server, other, kept):
            end.close()
