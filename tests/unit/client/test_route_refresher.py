from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress

from minimq.connection.route_refresher import RouteRefresher
from minimq_common.errors import Unavailable


class Asked:
    """Notes what is asked, and answers when it is let."""

    def __init__(self) -> None:
        self.at: list[tuple[str, float]] = []
        self.let = asyncio.Event()
        self.let.set()
        self.refresher = RouteRefresher(self.ask)

    @property
    def topics(self) -> list[str]:
        return [topic for topic, _ in self.at]

    async def ask(self, topic: str) -> None:
        self.at.append((topic, time.monotonic()))
        await self.let.wait()
        if topic == "gone":
            raise Unavailable("nobody answers")
        if topic == "broken":
            raise RuntimeError("a defect")


def refreshing(test: Callable[[Asked], Awaitable[None]]) -> None:
    """Run a test while topics are asked for."""

    async def run() -> None:
        asked = Asked()
        task = asyncio.create_task(asked.refresher.run())
        async with asyncio.timeout(20):
            await test(asked)
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    asyncio.run(run())


async def until(met: Callable[[], bool]) -> None:
    while not met():  # noqa: ASYNC110 - another task's doing, which tells nobody
        await asyncio.sleep(0.001)


def test_a_topic_that_is_wanted_often_waits_once_and_is_asked_for_seldom() -> None:
    async def test(asked: Asked) -> None:
        asked.let.clear()
        asked.refresher.want("orders")
        await until(lambda: asked.topics == ["orders"])
        for _ in range(1000):  # while its question is under way: the answer may be older than the wish
            asked.refresher.want("orders")
        asked.let.set()
        await until(lambda: len(asked.at) == 2)
        asked.refresher.want("orders")
        await until(lambda: len(asked.at) == 3)
        times = [moment for _, moment in asked.at]
        assert min(later - earlier for earlier, later in itertools.pairwise(times)) > 0.09
        await asyncio.sleep(0.2)
        assert len(asked.at) == 3

    refreshing(test)


def test_each_topic_has_its_turn_and_a_failure_ends_nothing() -> None:
    async def test(asked: Asked) -> None:
        for topic in ("gone", "broken", "a", "b"):
            asked.refresher.want(topic)
        await until(lambda: asked.topics == ["gone", "broken", "a", "b"])

    refreshing(test)


def test_a_topic_is_remembered_only_for_as_long_as_it_may_not_be_asked_for_again() -> None:
    async def test(asked: Asked) -> None:
        for number in range(50):
            asked.refresher.want(f"topic-{number}")
        await until(lambda: len(asked.at) == 50)
        latest = asked.at[-1][1]
        await until(lambda: time.monotonic() > latest + 0.11)
        asked.refresher.want("last")
        await until(lambda: asked.topics[-1] == "last")
        assert list(asked.refresher._asked) == ["last"]

    refreshing(test)


def test_neglected_topics_are_asked_for_in_every_turn() -> None:
    asked: list[str] = []

    async def ask(topic: str) -> None:
        asked.append(topic)

    async def run() -> None:
        refresher = RouteRefresher(ask, lambda: ("a", "b"), poll_s=0.02)
        task = asyncio.create_task(refresher.run())
        async with asyncio.timeout(20):
            await until(lambda: asked[:4] == ["a", "b", "a", "b"])
        task.cancel()

    asyncio.run(run())
