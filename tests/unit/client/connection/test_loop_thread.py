"""The event loop of a connection, and its end."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from typing import Any

import pytest

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


@pytest.mark.parametrize("is_late", [False, True])
def test_close_ends_the_thread_though_an_earlier_one_was_interrupted(
    monkeypatch: pytest.MonkeyPatch, *, is_late: bool
) -> None:
    finished, ends = threading.Event(), threading.Event()

    async def finish() -> None:
        finished.set()

    loop = LoopThread("test-loop", finish)
    loop.call_soon(ends.wait, 20.0)  # so that all calls of `close` are made in one turn
    assert loop._loop is not None
    wake = loop._loop.call_soon_threadsafe

    def interrupted(*call: Any) -> None:
        if is_late:
            wake(*call)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loop._loop, "call_soon_threadsafe", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loop.close()
    closing = threading.Thread(target=loop.close, daemon=True)
    closing.start()
    ends.set()
    closing.join(20)
    assert not closing.is_alive()
    assert finished.is_set()
