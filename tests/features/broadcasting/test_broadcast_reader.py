"""When a broadcasting consumer looks up the routes of its topics, also after a failure."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from minimq.features.broadcasting.broadcasting import BroadcastReader
from minimq_common.errors import AccessDenied


class FakeRoutes:
    """Fails at the first look, amid which a route changes."""

    def __init__(self, failure: Exception) -> None:
        self.failure = failure
        self.tell: Any = None
        self.ticks = 0
        self.looks_after: list[int] = []
        self.has_looked = asyncio.Event()

    def on_change(self, callback: Any) -> None:
        self.tell = callback

    def tick(self) -> None:
        self.ticks += 1

    async def find(self, topic: str) -> Any:
        self.looks_after.append(self.ticks)
        if len(self.looks_after) == 1:
            self.tell(None)
            raise self.failure
        self.has_looked.set()
        return SimpleNamespace(read_queues=list)


@pytest.mark.parametrize("failure", [AccessDenied("no right to read orders"), RuntimeError("can't start new thread")])
def test_a_route_that_changes_amid_a_look_that_fails_is_looked_at_at_once(failure: Exception) -> None:
    async def run() -> list[int]:
        routes = FakeRoutes(failure)
        client: Any = SimpleNamespace(routes=routes)
        fetcher: Any = routes
        offsets: Any = None
        reader = BroadcastReader(client, ["orders"], offsets, offsets, fetcher)
        reader.start()
        async with asyncio.timeout(60):
            await routes.has_looked.wait()
        await reader.leave()
        return routes.looks_after

    assert asyncio.run(run()) == [0, 1]
