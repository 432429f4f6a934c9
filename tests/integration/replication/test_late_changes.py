"""Changes of topics that are answered by an error, since replicas are missing, and stand all the same."""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from pathlib import Path

import pytest

from minimq_broker.core.facts import Topic, TopicDeleted, TopicSet
from minimq_broker.services.engine import Engine
from minimq_broker.store.store_options import StoreOptions
from minimq_common.errors import NotEnoughReplicas
from support.observers import NO_ENGINE_OBSERVER
from support.replica_engine import LIMITS, make_topic
from support.stores import PATIENCE_S
from support.waiting import wait_until


@pytest.mark.parametrize("another_before", [False, True])
def test_a_change_that_is_answered_by_an_error_is_told_of(tmp_path: Path, another_before: bool) -> None:
    """It is not mistaken for told of when one that made it through was answered while this one was in the log."""
    told: list[int] = []

    async def run() -> None:
        observer = replace(NO_ENGINE_OBSERVER, topics_changed=lambda: told.append(len(engine.state.topics)))
        engine: Engine = Engine(tmp_path, StoreOptions(), LIMITS, observer, alone=False)
        try:
            async with asyncio.timeout(PATIENCE_S):
                await play(engine)
        finally:
            engine.close()

    async def play(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        queue = await make_topic(engine)
        await engine.lead(2, waits_for_replicas=True)
        engine.store.confirm(engine.store.end)
        looking = asyncio.create_task(engine.arrivals.wait(queue, 0, PATIENCE_S * 10))
        before = engine.store.end
        made = asyncio.create_task(engine.writes.record(lambda state: TopicSet(Topic("u", state.position, 1, 1))))
        await asyncio.to_thread(wait_until, lambda: engine.store.end > before)
        middle = engine.store.end
        deleted = asyncio.create_task(engine.writes.record(lambda _: TopicDeleted("t")))
        await asyncio.to_thread(wait_until, lambda: engine.store.end > middle)
        told.clear()
        if another_before:
            engine.store.confirm(middle)
            await made
        assert not looking.done()
        engine.store.expire(math.inf)
        with pytest.raises(NotEnoughReplicas):
            await deleted
        assert told[-1] == 1
        await looking  # whoever waits for a message of a topic that is gone is told
        engine.store.confirm(engine.store.end)
        await asyncio.gather(made, return_exceptions=True)
        assert set(engine.state.topics) == {"u"}

    asyncio.run(run())
