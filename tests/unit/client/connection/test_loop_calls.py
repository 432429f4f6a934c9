"""Work in steps: what it hears of Ctrl-C, and of a cancellation, wherever these come."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from types import FrameType, SimpleNamespace
from typing import Any, cast

import pytest

from minimq.connection.client import ClusterClient
from minimq.connection.loop_calls import LoopStep, await_steps, run_steps
from support.waiting import wait_until


class HereClient:
    """Runs steps where it is asked to."""

    connection = SimpleNamespace(is_loop_thread=False)

    def wait(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return asyncio.run(make())

    async def result(self, make: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
        return await make()


class Work:
    """Two steps, and one that undoes them if they are broken off."""

    def __init__(self, *, hangs: bool = False) -> None:
        self.done: list[object] = []
        self._hangs = hangs
        self._client = cast("ClusterClient", HereClient())

    async def steps(self) -> None:
        try:
            await self._step("one")
            await self._step("two")
        except BaseException as error:
            self.done.append(type(error))
            await self._step("undo")
            raise

    def _step(self, name: str) -> LoopStep[None]:
        async def note() -> None:
            self.done.append(name)
            if self._hangs and name == "one":
                await asyncio.sleep(3600)

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


def test_a_cancellation_during_a_step_is_told_to_the_work() -> None:
    work = Work(hangs=True)

    async def run() -> None:
        task = asyncio.ensure_future(await_steps(work.steps()))
        await asyncio.to_thread(wait_until, lambda: bool(work.done))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert work.done == ["one", asyncio.CancelledError, "undo"]
