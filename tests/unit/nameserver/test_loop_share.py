"""Long work on an event loop leaves time to others."""

from __future__ import annotations

import asyncio
import itertools
import time

import pytest

from minimq_nameserver import loop_share
from minimq_nameserver.loop_share import ROUNDS, LoopShare

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


def test_between_two_slices_a_call_gets_from_its_bytes_to_its_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others have some rounds of the loop, whether one who has the turn goes on or the next one gets it."""
    monkeypatch.setattr(loop_share, "SLICE_S", -1.0)  # as on a machine that needs as long for each step
    share = LoopShare()
    rounds = 0
    slices: list[int] = []

    async def count() -> None:
        nonlocal rounds
        while True:
            await asyncio.sleep(0)
            rounds += 1

    async def work() -> None:
        async with share:
            slices.append(rounds)
            await share.turn()
            slices.append(rounds)

    async def run() -> None:
        counting = asyncio.create_task(count())
        await asyncio.gather(work(), work())
        counting.cancel()

    asyncio.run(run())
    assert [later - earlier >= ROUNDS for earlier, later in itertools.pairwise(slices)] == [True] * 3


def test_what_is_done_before_the_first_look_at_the_clock_counts() -> None:
    share = LoopShare()
    others = 0

    async def count() -> None:
        nonlocal others
        while True:
            await asyncio.sleep(0)
            others += 1

    async def run() -> None:
        counting = asyncio.create_task(count())
        async with share:
            until = time.perf_counter() + LONG_S
            while time.perf_counter() < until:
                pass
            await share.turn()
        counting.cancel()

    asyncio.run(run())
    assert others > 0
