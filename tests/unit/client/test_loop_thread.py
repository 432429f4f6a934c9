"""The event loop of a connection, and its end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress

from minimq.connection.loop_thread import LoopThread


def test_a_task_that_loses_a_cancellation_ends_nevertheless() -> None:
    """As one that reads a stream of gRPC does, when the stream breaks at that moment."""
    begun, finished = threading.Event(), threading.Event()

    async def go_on() -> None:
        with suppress(asyncio.CancelledError):
            begun.set()
            await asyncio.Event().wait()
        await asyncio.Event().wait()

    async def finish() -> None:
        finished.set()

    loop = LoopThread("test-loop", finish)
    tasks: list[asyncio.Task[None]] = []
    loop.call_soon(lambda: tasks.append(asyncio.ensure_future(go_on())))
    assert begun.wait(20)
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    closing.join(20)
    assert not closing.is_alive()
    assert finished.is_set()
