"""The look at old segments in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path

from minimq_broker.services.engine import Engine
from minimq_broker.services.upkeep.scrub import Scrub
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
