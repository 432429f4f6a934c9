"""Work in steps: what it hears of Ctrl-C, and of a cancellation, wherever these come."""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Coroutine
from types import FrameType
from typing import Any, cast

import pytest

from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import LoopStep, Steps, await_steps, run_steps
from support.waiting import wait_until


class HereClient:
    """Runs steps where it is asked to."""

    def wait(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(make())

    async def result(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await make()


class Work:
    """Two steps, and one that undoes them if they are broken off."""

    def __init__(self, first: Callable[[], object] = lambda: None) -> None:
        self.done: list[object] = []
        self._first = first
        self._client = cast("ClusterClient", HereClient())

    def steps(self) -> Steps[None]:
        self._first()
        try:
            yield self._step("one")
            yield self._step("two")
        except BaseException as error:
            self.done.append(type(error))
            yield self._step("undo")
            raise

    def _step(self, name: str) -> LoopStep[None]:
        async def note() -> None:
            self.done.append(name)

        return LoopStep(self._client, note)


def test_an_interrupt_between_two_steps_is_told_to_the_work() -> None:
    work = Work()

    def trace(frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code is not run_steps.__code__:
            return None
        if event == "line" and work.done == ["one"]:
            sys.settrace(None)
            frame.f_trace = None
            raise KeyboardInterrupt
        return trace

    former = sys.gettrace()
    sys.settrace(trace)
    try:
        with pytest.raises(KeyboardInterrupt):
            run_steps(work.steps)
    finally:
        sys.settrace(former)
    assert work.done == ["one", KeyboardInterrupt, "undo"]


def test_a_cancellation_while_a_thread_prepares_the_first_step_is_told_to_the_work() -> None:
    """Nobody waits for the thread, which may take long."""
    may_go_on = threading.Event()
    work = Work(lambda: may_go_on.wait(20))

    async def run() -> None:
        task = asyncio.ensure_future(await_steps(work.steps(), is_quick=False))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        may_go_on.set()
        await asyncio.to_thread(wait_until, lambda: len(work.done) > 1, 20)
        assert work.done == [asyncio.CancelledError, "undo"]

    asyncio.run(run())
