"""The offsets of groups at a replica that leads, and one that does not."""

from __future__ import annotations

import asyncio
from pathlib import Path

from minimq_broker.core.facts import CommittedOffset, OffsetsCommitted
from minimq_broker.core.state import QueueKey
from minimq_broker.services.engine import Engine
from support.replica_engine import make_topic, with_engine


def fact(queue: QueueKey, offset: int) -> OffsetsCommitted:
    return OffsetsCommitted("g", (CommittedOffset(*queue, offset),), forced=False)


def test_a_group_goes_on_at_the_next_master_and_does_not_go_back(tmp_path: Path) -> None:
    async def test(engine: Engine) -> None:
        await engine.lead(1, waits_for_replicas=False)
        engine.begin(1)
        queue = await make_topic(engine, 500)
        await engine.writes.commit(fact(queue, 300))
        await engine.follow()
        engine.begin(1)
        assert engine.state.offset("g", queue) == 300
        await engine.lead(2, waits_for_replicas=False)
        engine.begin(2)
        await engine.writes.commit(fact(queue, 400))
        await engine.writes.commit(fact(queue, 350))
        assert engine.state.offset("g", queue) == 400

    with_engine(tmp_path, test)


def test_a_replica_takes_its_role_once_its_store_can_be_opened_again(tmp_path: Path) -> None:
    path, away = tmp_path / "data", tmp_path / "away"

    async def test(engine: Engine) -> None:
        async def break_it(path: Path, segment_bytes: int) -> None:
            await asyncio.to_thread(path.rename, away)
            await asyncio.to_thread(path.write_text, "not a directory")

        try:
            await engine.handle.replace(break_it, "it is copied")
        except Exception:  # noqa: BLE001 - it is looked at below
            assert engine.handle.is_closed
        await asyncio.to_thread(path.unlink)
        await asyncio.to_thread(away.rename, path)
        await engine.follow()
        assert not engine.handle.is_closed
        await engine.lead(1, waits_for_replicas=False)
        assert engine.store.leads

    with_engine(path, test)
