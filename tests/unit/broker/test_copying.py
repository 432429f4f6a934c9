"""A copy that a slave takes of its master: what becomes of the store when the slave is told to stop meanwhile."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from minimq_broker.replication.copying import fill
from minimq_broker.services.store_handle import StoreHandle
from minimq_broker.store.store_options import StoreOptions
from minimq_broker.store.upkeep.check import check_directory
from minimq_broker.store.upkeep.copy import StoreCopy
from minimq_proto.v1 import replication_pb2
from support.observers import NOBODY


def test_a_copy_that_is_cancelled_while_it_begins_does_not_keep_the_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The thread that makes it cannot be cut short, and it holds the lock of the directory."""
    begun, gate = threading.Event(), threading.Event()
    clear = StoreCopy._clear

    def slowly(copy: StoreCopy, *, replace: bool) -> None:
        begun.set()
        assert gate.wait(20)
        clear(copy, replace=replace)

    monkeypatch.setattr(StoreCopy, "_clear", slowly)
    handle = StoreHandle(tmp_path, StoreOptions(), **NOBODY, alone=False, clock_ms=lambda: 1)

    async def copy(path: Path, segment_bytes: int) -> None:
        frames = [replication_pb2.ReplicaFrame(rows_end=True)]

        async def next_frame() -> replication_pb2.ReplicaFrame:
            return frames.pop()

        first = replication_pb2.ReplicaFrame(copy=replication_pb2.CopyAll())
        await fill(path, segment_bytes, first, next_frame, until=1, replace=True)

    async def cancel_it() -> None:
        task = asyncio.create_task(handle.replace(copy, "it is copied"))
        assert await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        await asyncio.wait((task,), timeout=0.2)  # it ends too early only when it does not wait for its thread
        gate.set()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(cancel_it())

    handle.store.lead(1)
    handle.any_store.close()
    assert check_directory(tmp_path).findings == []
