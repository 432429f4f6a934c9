"""Room for unread answers: which messages get it, which wait, and which stop counting."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from minimq_common.wire import unsent
from minimq_common.wire.unsent import SMALL_BYTES, UnsentBudget

LIMIT = 400_000
LARGE = SMALL_BYTES + 1
TIMEOUT_S = 20.0
PEER, OTHER = "ipv4:127.0.0.1:1", "ipv4:127.0.0.1:2"


def run(test: Callable[[], Awaitable[None]]) -> None:
    async def limited() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test()

    asyncio.run(limited())


async def settled() -> None:
    """Let every task that can go on do so."""
    for _ in range(10):
        await asyncio.sleep(0)


def test_a_large_message_waits_while_a_small_one_has_room() -> None:
    async def test() -> None:
        room = UnsentBudget(LIMIT)
        written = room.begin(PEER, 300_000)
        assert room.is_tight
        waiting = asyncio.create_task(room.room(LARGE))
        await room.room(SMALL_BYTES)
        await settled()
        assert not waiting.done()
        room.end(written)
        await waiting

    run(test)


def test_a_message_that_is_not_read_by_its_deadline_stops_counting_once_another_waits(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(unsent, "STUCK_S", 0.05)
    monkeypatch.setattr(unsent, "SLOWEST_BYTES_PER_S", 1 << 40)
    monkeypatch.setattr(unsent, "_CHECK_INTERVAL_S", 0.01)

    async def test() -> None:
        room = UnsentBudget(LIMIT)
        stuck = room.begin(PEER, LIMIT)
        await asyncio.sleep(0.1)
        assert room.bytes == LIMIT  # no message needs the room
        await room.room(0)
        assert room.bytes == 0
        room.end(stuck)  # its client reads at last
        assert room.bytes == 0

    run(test)
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "peer=ipv4:127.0.0.1:1 bytes=400000" in caplog.text
