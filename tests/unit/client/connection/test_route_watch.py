"""When the watch of routes is tried again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Collection
from typing import Any

import grpc
import pytest
from grpc.aio import AioRpcError, Metadata

from minimq.connection.name_servers import NameServers
from minimq.connection.routes import RouteWatch
from minimq_common.errors import NotAuthenticated
from minimq_common.security.channel_security import PLAIN
from minimq_common.wire.channels import Channels


class Rejected:
    """A stream that its name server rejects; and the stub that opens it."""

    def WatchRoutes(self, timeout: float) -> Rejected:
        return self

    async def __aiter__(self) -> AsyncIterator[Any]:
        told = Metadata(("minimq-code", NotAuthenticated.code), ("minimq-retry-after-ms", "3000"))
        raise AioRpcError(grpc.StatusCode.UNAUTHENTICATED, Metadata(), told, "no such key")
        yield

    async def write(self, request: object) -> None:
        """Take it."""

    def cancel(self) -> None:
        """Do nothing: it has ended."""


def pauses(monkeypatch: pytest.MonkeyPatch, *addresses: str, new_keys_at: Collection[int] = ()) -> list[float]:
    """Return the first six pauses of a watch that all name servers reject."""
    waited: list[float] = []
    sleep = asyncio.sleep

    async def noted(seconds: float) -> None:
        waited.append(seconds)
        await sleep(0.0 if len(waited) < 6 else 3_600.0)

    async def run() -> None:
        servers = NameServers(addresses, Channels(lambda _: Rejected(), security=PLAIN))  # type: ignore[arg-type, return-value]
        monkeypatch.setattr(NameServers, "stub", lambda _, address: Rejected())
        monkeypatch.setattr(NameServers, "has_new_key", lambda *_: len(waited) in new_keys_at)
        monkeypatch.setattr(asyncio, "sleep", noted)
        task = asyncio.create_task(RouteWatch(servers, list, print, 30.0).run())
        while len(waited) < 6:
            await sleep(0.0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    asyncio.run(run())
    return waited


def test_a_name_server_that_rejects_is_seldom_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    assert pauses(monkeypatch, "h:1") == [3.0] * 6


def test_the_others_are_asked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [pause == 3.0 for pause in pauses(monkeypatch, "h:1", "h:2", "h:3")] == [False, False, True] * 2


def test_a_new_key_is_shown_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [pause == 3.0 for pause in pauses(monkeypatch, "h:1", new_keys_at=[1, 4])] == [1, 0, 1, 1, 0, 1]
