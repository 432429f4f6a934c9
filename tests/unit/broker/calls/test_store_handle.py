"""The store of a broker while it is changed from the ground up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.calls.store_handle import LogStatus, StoreHandle
from minimq_broker.commit.message_store import MessageStore, StoreOptions
from minimq_broker.log.checkpoint import Snapshot
from minimq_broker.state.state import State
from minimq_common.errors import StoreError, SystemBusy
from support.observers import NOBODY

WHY = "it is copied"


class Opened:
    """A handle of one of several replicas, which has led and written one entry."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replaced: list[State] = []
        self.handle = StoreHandle(
            path, StoreOptions(), **(NOBODY | {"replaced": self.replaced.append}), alone=False, clock_ms=lambda: 1
        )
        self.handle.store.lead(1)
        self.handle.store.follow()
        assert self.handle.log_status.end > 0

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        async def running() -> None:
            await work

        asyncio.run(running())

    def close(self) -> None:
        self.handle.any_store.close()
        assert check_directory(self.path).findings == []


def test_nobody_looks_while_the_store_is_changed(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    seen: list[object] = []

    def work(store: MessageStore) -> None:
        with pytest.raises(SystemBusy, match=WHY):
            _ = opened.handle.store
        seen.append((opened.handle.is_closed, opened.handle.log_status))
        store.truncate(0)

    opened.run(opened.handle.change(work, WHY))

    assert seen == [(True, LogStatus())]
    assert not opened.handle.is_closed
    assert opened.handle.store.end == 0
    assert len(opened.replaced) == 1
    opened.close()


def test_a_copy_that_fails_leaves_an_empty_store(tmp_path: Path) -> None:
    opened = Opened(tmp_path)

    async def copy(path: Path, segment_bytes: int) -> None:
        StoreCopy(path, Snapshot(0, []), 0, segment_bytes, replace=True).close()
        raise StoreError("the master is gone")

    with pytest.raises(StoreError, match="the master is gone"):
        opened.run(opened.handle.replace(copy, WHY))

    assert opened.handle.store.end == 0
    assert len(opened.replaced) == 1
    opened.close()


def test_a_store_that_cannot_be_opened_again_is_opened_later(tmp_path: Path) -> None:
    opened = Opened(tmp_path / "data")
    away = tmp_path / "away"

    def break_it() -> None:
        opened.path.rename(away)
        opened.path.write_text("not a directory")

    async def copy(path: Path, segment_bytes: int) -> None:
        await asyncio.to_thread(break_it)

    with pytest.raises(StoreError):
        opened.run(opened.handle.replace(copy, WHY))
    assert opened.handle.is_closed
    with pytest.raises(StoreError):
        opened.run(opened.handle.ensure_open())
    opened.path.unlink()
    away.rename(opened.path)
    opened.run(opened.handle.ensure_open())

    assert opened.handle.log_status.last_term == 1
    opened.close()


def test_nobody_closes_the_store_under_those_who_look(tmp_path: Path) -> None:
    opened = Opened(tmp_path)
    looking, enough = threading.Event(), threading.Event()
    seen: list[object] = []

    def look() -> None:
        with opened.handle.reading() as store:
            looking.set()
            assert enough.wait(20)
            seen.append(len(store.entries(0, 1)))

    async def close_it() -> None:
        reader = asyncio.create_task(asyncio.to_thread(look))
        assert await asyncio.to_thread(looking.wait, 20)

        async def copy(path: Path, segment_bytes: int) -> None:
            seen.append("closed")
            StoreCopy(path, Snapshot(0, []), 0, segment_bytes, replace=True).finish()

        task = asyncio.create_task(opened.handle.replace(copy, WHY))
        await asyncio.wait((task,), timeout=0.2)  # it ends too early only when it does not wait for the reader
        with pytest.raises(SystemBusy, match=WHY), opened.handle.reading():
            pass
        enough.set()
        await reader
        await task

    opened.run(close_it())

    assert seen == [1, "closed"]
    opened.close()
