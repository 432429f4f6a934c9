"""The look at old segments in the background."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterator
from copy import copy
from functools import partial
from pathlib import Path

import pytest

from minimq_broker.backup.scrub import Scrub
from minimq_broker.calls.engine import Engine
from support.replica_engine import make_topic, with_engine
from support.waiting import wait_until


def test_pages_are_looked_at_after_a_start_also_without_rounds(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await asyncio.to_thread(engine.store.lead, 1)
        await make_topic(engine, 1)
        for _ in range(3):
            await asyncio.to_thread(engine.store.call, lambda: engine.store.log.roll(engine.store.end))
            await make_topic(engine, 1, f"t{engine.store.end}")
        old = engine.store.log.segments[:-1]
        assert len(old) == 3
        for segment in old:
            segment.pages.is_over = False  # as of old segments for which a start had no time
        scrub = Scrub(engine.handle, engine.counters, 0)
        scrub.start()
        try:
            await asyncio.to_thread(wait_until, lambda: all(segment.pages.is_over for segment in old))
        finally:
            await scrub.stop()
        assert engine.counters.segments_verified == 0

    with_engine(tmp_path / "data", test)


def test_pages_are_looked_at_once_more_when_the_log_was_cut_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def test(engine: Engine) -> None:
        await asyncio.to_thread(engine.store.lead, 1)
        for number in range(3):
            await make_topic(engine, 1, f"t{number}")
            await asyncio.to_thread(engine.store.call, lambda: engine.store.log.roll(engine.store.end))
        old, sleep, writer = engine.store.log.segments[:-1], asyncio.sleep, engine.store._writer

        def walk(walk_all: Callable[[], Iterator[None]]) -> Iterator[None]:
            yield  # as in a file of many pages
            yield from walk_all()

        for segment in old:
            segment.pages.is_over = False
            monkeypatch.setattr(segment.pages, "walk", partial(walk, segment.pages.walk))
        seen: list[bool] = []

        async def cut(delay_s: float) -> None:
            await sleep(delay_s)
            if not seen:
                writer.state = copy(writer.state)
            seen.append(True)

        monkeypatch.setattr(asyncio, "sleep", cut)
        scrub = Scrub(engine.handle, engine.counters, 0)
        while not scrub._has_seen_pages:
            await scrub._scrub()
        assert seen
        assert scrub._interval_s() == math.inf  # no round follows
        assert all(segment.pages.is_over for segment in old)

    with_engine(tmp_path / "data", test)
