"""The store of a broker while it is changed from the ground up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from minimq_broker.backup.copy import StoreCopy
from minimq_broker.calls.engine import Engine
from minimq_broker.commit.store import LogStatus
from minimq_broker.log.checkpoint import Snapshot
from minimq_common.errors import StoreError, SystemBusy
from support.replica_engine import with_engine

COPIED, CUT = "copies everything", "truncates"


def with_entries(path: Path, test: Callable[[Engine, list[None]], Awaitable[None]]) -> None:
    """Run a test with an engine that has led and follows now, and a list that grows when topics are announced."""

    async def run(engine: Engine) -> None:
        announced: list[None] = []
        await engine.lead(1, waits_for_replicas=False)
        await engine.follow()
        assert engine.store.status.end > 0
        engine.topic_listeners.append(lambda: announced.append(None))
        await test(engine, announced)

    with_engine(path, run)


def test_readers_are_rejected_while_the_store_is_cut(tmp_path: Path) -> None:
    async def test(engine: Engine, announced: list[None]) -> None:
        busy, go_on = threading.Event(), threading.Event()

        def wait() -> None:
            busy.set()
            assert go_on.wait(20)

        waiting = asyncio.create_task(asyncio.to_thread(engine.store.writer.call, wait))
        assert await asyncio.to_thread(busy.wait, 20)
        version = engine.versions.next
        cutting = asyncio.create_task(engine.truncate(0))
        await asyncio.sleep(0)
        with pytest.raises(SystemBusy, match=CUT):
            _ = engine.store.state
        assert (engine.store.is_readable, engine.store.status) == (False, LogStatus())
        go_on.set()
        await waiting
        await cutting

        assert engine.store.end == 0
        assert len(announced) == 1
        assert engine.versions.next > version

    with_entries(tmp_path, test)


def test_a_copy_that_fails_leaves_an_empty_store(tmp_path: Path) -> None:
    async def copy(path: Path, segment_bytes: int) -> None:
        StoreCopy(path, Snapshot(0, []), 0, segment_bytes, replace=True).close()
        raise StoreError("the master is gone")

    async def test(engine: Engine, announced: list[None]) -> None:
        with pytest.raises(StoreError, match="the master is gone"):
            await engine.replace(copy)

        assert engine.store.end == 0
        assert len(announced) == 1

    with_entries(tmp_path, test)


def test_a_store_that_cannot_be_opened_again_is_opened_later(tmp_path: Path) -> None:
    data, away = tmp_path / "data", tmp_path / "away"

    def break_it() -> None:
        data.rename(away)
        data.write_text("not a directory")

    async def copy(path: Path, segment_bytes: int) -> None:
        await asyncio.to_thread(break_it)

    async def test(engine: Engine, announced: list[None]) -> None:
        with pytest.raises(StoreError):
            await engine.replace(copy)
        assert not engine.store.is_readable
        with pytest.raises(StoreError):
            await engine.ensure_open()
        data.unlink()
        away.rename(data)
        await engine.ensure_open()

        assert engine.store.status.last_term == 1

    with_entries(data, test)


def test_the_store_is_not_closed_under_a_reader(tmp_path: Path) -> None:
    async def test(engine: Engine, announced: list[None]) -> None:
        looking, enough = threading.Event(), threading.Event()
        seen: list[object] = []

        def look() -> None:
            with engine.store.reading():
                looking.set()
                assert enough.wait(20)
                seen.append(len([*engine.store.log.entries()]))

        async def copy(path: Path, segment_bytes: int) -> None:
            seen.append("closed")
            StoreCopy(path, Snapshot(0, []), 0, segment_bytes, replace=True).finish()

        reader = asyncio.create_task(asyncio.to_thread(look))
        assert await asyncio.to_thread(looking.wait, 20)
        task = asyncio.create_task(engine.replace(copy))
        await asyncio.wait((task,), timeout=0.2)  # it ends too early only when it does not wait for the reader
        with pytest.raises(SystemBusy, match=COPIED), engine.store.reading():
            pass
        enough.set()
        await reader
        await task

        assert seen == [1, "closed"]

    with_entries(tmp_path, test)
