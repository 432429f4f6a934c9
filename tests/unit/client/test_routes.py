"""Routes that are refreshed in the background."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from typing import Any, cast

from minimq.connection.routes import Routes
from minimq_common.errors import Unavailable
from minimq_common.model import TopicRoute


class NameServers:
    """Notes what it is asked, and answers when it is let."""

    preferred = "here"

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.routes = Routes(cast("Any", self), cast("Any", self), poll_s=30)

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.at]

    def call_soon(self, call: Callable[..., object], *arguments: object) -> bool:
        asyncio.get_running_loop().call_soon(call, *arguments)
        return True

    async def route(self, topic: str, _: float) -> TopicRoute:
        self.at.append((topic, time.monotonic()))
        await self.let.wait()
        if topic == "gone":
            raise Unavailable("nobody answers")
        if topic == "broken":
            raise RuntimeError("a defect")
        return TopicRoute(topic, (), {})


def refreshing(test: Callable[[NameServers], Awaitable[None]]) -> None:
    async def run() -> None:
        async with asyncio.timeout(20):
            await test(NameServers())

    asyncio.run(run())


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - another task's doing, which tells nobody
        await asyncio.sleep(0.001)


def test_a_topic_that_is_wanted_often_is_asked_for_seldom() -> None:
    async def test(asked: NameServers) -> None:
        asked.let.clear()
        asked.routes.refresh_soon("orders")
        await until(lambda: asked.topics == ["orders"])
        for _ in range(1000):  # while its question is under way: the answer may be older than the wish
            asked.routes.refresh_soon("orders")
        asked.let.set()
        await until(lambda: len(asked.at) == 2)
        asked.routes.refresh_soon("orders")
        await until(lambda: len(asked.at) == 3)
        times = [moment for _, moment in asked.at]
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.09
        await until(lambda: not asked.routes._refreshing)
        assert len(asked.at) == 3

    refreshing(test)


def test_each_topic_has_its_turn_and_a_failure_ends_nothing() -> None:
    async def test(asked: NameServers) -> None:
        topics = ["gone", "broken", "a", "b"]
        for topic in topics:
            asked.routes.refresh_soon(topic)
        await until(lambda: asked.topics == topics)

    refreshing(test)
