"""Long work on an event loop leaves time to others."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from minimq_nameserver.loop_share import LoopShare

LONG_S = 0.02


def test_after_a_long_step_others_have_more_time_than_it_took() -> None:
    share = LoopShare()
    began: list[float] = []

    def work() -> None:
        began.append(time.perf_counter())
        until = began[-1] + LONG_S
        while time.perf_counter() < until:
            pass

    async def run() -> None:
        await asyncio.gather(*(share.step(work) for _ in range(3)))

    asyncio.run(run())
    assert [later - earlier > 3 * LONG_S for earlier, later in itertools.pairwise(began)] == [True, True]


def test_a_step_that_fails_leaves_the_turn_to_the_next() -> None:
    share = LoopShare()

    def fail() -> None:
        raise ValueError("no place")

    async def run() -> int:
        with pytest.raises(ValueError, match="no place"):
            await share.step(fail)
        return await share.step(lambda: 7)

    assert asyncio.run(run()) == 7
