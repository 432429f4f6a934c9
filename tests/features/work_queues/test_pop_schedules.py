"""Queues that are popped: hand-outs, answers, deadlines, faults and clocks in any order, against single messages."""

from __future__ import annotations

import os
import random

import pytest

from minimq_broker.features.work_queues import pop_blocks, pop_queue
from minimq_broker.log import clock as pop_clock
from minimq_broker.log.clock import PopClock
from support.chance import SEED
from support.pop_model import PopLimits
from support.pop_world import PopWorld, Times

#: How many schedules; MINIMQ_TEST_SCHEDULES=100000 for a long run.
SCHEDULES = int(os.environ.get("MINIMQ_TEST_SCHEDULES", "80"))
#: The number of the first one, so that several runs add up to a longer one.
FIRST = int(os.environ.get("MINIMQ_TEST_FIRST_SCHEDULE", "0"))
#: How many of them make one test, so that processes can share a long run.
CHUNK = 250


@pytest.mark.rounds
@pytest.mark.parametrize("first", range(FIRST, FIRST + SCHEDULES, CHUNK))
@pytest.mark.parametrize("limits", [PopLimits(100_000, 1 << 18), PopLimits(60, 30, 8)], ids=["wide", "narrow"])
@pytest.mark.parametrize("fifo", [False, True], ids=["plain", "fifo"])
def test_a_message_is_in_one_hand_until_it_is_settled(
    fifo: bool, limits: PopLimits, first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pop_queue, "MAX_HELD", limits.held)
    monkeypatch.setattr(pop_queue, "MAX_BITMAPS", limits.bitmaps)
    monkeypatch.setattr(pop_queue, "BLOCK", limits.block)
    monkeypatch.setattr(pop_blocks, "BLOCK", limits.block)
    times = Times()
    monkeypatch.setattr(pop_clock, "time", times)
    for number in range(first, min(first + CHUNK, FIRST + SCHEDULES)):
        play(f"{SEED} {number}", times, limits, fifo=fifo)


def play(seed: str, times: Times, limits: PopLimits, *, fifo: bool) -> None:
    """Play one schedule."""
    times.begin()
    world = PopWorld(random.Random(seed), times, PopClock, limits, fifo=fifo)
    try:
        world.play(40)
    except Exception as error:
        first, _, _ = seed.partition(" ")
        trace = "\n".join(map(str, world.trace[-60:]))
        raise AssertionError(f"MINIMQ_TEST_SEED={first}, schedule {seed!r}:\n{trace}\n{error!r}") from error
