"""The timer of delayed batches, in virtual time: it wakes when something is due, and whenever that may have changed."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, cast

import pytest

from minimq_broker.services.counters import Counters
from minimq_broker.services.held.delaying import DueTimer
from minimq_broker.store.jobs import DueJob
from minimq_common.errors import MiniMQError
from support.virtual_loop import VirtualLoop


class World:
    """A store with batches that are due at times in ms, which are published by the clock of the loop."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.dues: list[int] = []
        self.published: dict[int, int] = {}
        self.jobs = 0
        self.leads = True
        self.ahead_ms = 0
        self.most = 1_000
        self.is_stuck = False
        self.refusal: MiniMQError | None = None
        self.failure: MiniMQError | None = None
        self.counters = Counters()
        self.timer = DueTimer(cast("Any", self), cast("Any", self), self.counters, self.now_ms)

    def now_ms(self) -> int:
        return int(self.loop.time() * 1000 + 0.001) + self.ahead_ms

    # ---- as a handle with its store, and as the way to the writer ---------------------------------

    @property
    def store(self) -> World:
        return self

    @property
    def next_due_ms(self) -> int | None:
        return min(self.dues, default=None)

    def check(self, *, to_sender: bool) -> None:
        assert to_sender
        if self.refusal is not None:
            raise self.refusal

    async def publish_due(self) -> DueJob:
        self.jobs += 1
        if self.failure is not None:
            raise self.failure
        await asyncio.sleep(0.001)
        job = DueJob()
        if self.is_stuck:
            return job
        ready = sorted(due for due in self.dues if due <= self.now_ms())
        for due in ready[: self.most]:
            self.dues.remove(due)
            self.published[due] = self.now_ms()
            job.messages += 1
            job.late_ms.append(self.now_ms() - due)
        job.has_more = len(ready) > self.most
        return job

    def put(self, *dues: int) -> None:
        self.dues += dues
        for due in dues:
            self.timer.delayed(due)

    @property
    def latest_ms(self) -> int:
        return max(at - due for due, at in self.published.items())


def play(scene: Coroutine[Any, Any, None]) -> None:
    loop = VirtualLoop()
    try:
        loop.run_until_complete(scene)
    finally:
        loop.close()


def test_each_is_published_at_its_time() -> None:
    async def scene() -> None:
        world = World()
        world.timer.start()
        world.put(100, 5_000, 90_000)
        await asyncio.sleep(100)
        await world.timer.stop()
        assert sorted(world.published) == [100, 5_000, 90_000]
        assert 0 <= world.latest_ms <= 5
        assert world.jobs == 3
        assert world.counters.delayed_published == 3
        assert world.counters.delayed_late_s.cumulative()[-1][1] == 3

    play(scene())


def test_what_is_due_sooner_wakes_it() -> None:
    async def scene() -> None:
        world = World()
        world.timer.start()
        world.put(60_000)
        await asyncio.sleep(0.25)
        world.put(300)
        await asyncio.sleep(1)
        await world.timer.stop()
        assert world.published.keys() == {300}
        assert world.latest_ms <= 5

    play(scene())


def test_a_crowd_shares_commits_and_none_is_late() -> None:
    async def scene() -> None:
        world = World()
        world.put(*range(1_000, 3_000))
        world.timer.start()
        await asyncio.sleep(4)
        await world.timer.stop()
        assert len(world.published) == 2_000
        assert world.latest_ms <= 10
        assert world.jobs <= 520, "a commit has several of them"

    play(scene())


def test_it_goes_on_at_once_while_more_is_due() -> None:
    async def scene() -> None:
        world = World()
        world.most = 10
        world.put(*range(1, 1_001))
        await asyncio.sleep(2)  # a start after an outage
        world.timer.start()
        await asyncio.sleep(0.5)
        await world.timer.stop()
        assert len(world.published) == 1_000

    play(scene())


@pytest.mark.parametrize("ahead_ms", [3_600_000, -3_600_000])
def test_a_clock_that_is_set_is_noticed(ahead_ms: int) -> None:
    async def scene() -> None:
        world = World()
        world.timer.start()
        world.put(1_000_000)
        await asyncio.sleep(1)
        world.ahead_ms = ahead_ms
        await asyncio.sleep(1)
        assert bool(world.published) == (ahead_ms > 0)
        await asyncio.sleep(1_000 - ahead_ms / 1000 if ahead_ms < 0 else 1)
        await world.timer.stop()
        assert world.published.keys() == {1_000_000}

    play(scene())
