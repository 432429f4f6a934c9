"""Work on the store that does not run on the event loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Generator
from typing import TypeVar

from minimq_broker.commit.store import Store
from minimq_broker.state.state import State

Result = TypeVar("Result")


async def uncancellable(work: Awaitable[Result]) -> Result:
    """Return the result of work that must not be interrupted. A cancellation is raised when the work is done."""
    task = asyncio.ensure_future(work)
    cancelled = False
    while not task.done():
        try:
            await asyncio.wait((task,))
        except asyncio.CancelledError:
            cancelled = True
    result = task.result()
    if cancelled:
        raise asyncio.CancelledError
    return result


async def in_steps(
    store: Store, begin: Callable[[Store], Generator[None, None, Result]], pause: Callable[[float], Awaitable[object]]
) -> Result | None:
    """Run a generator on the store in another thread, one step at a time, and return its result.

    `pause` is awaited between two steps, with the duration of the last step in seconds. Returns None if the store was
    replaced or truncated meanwhile. Always closes the generator.
    """
    work: Generator[None, None, Result] | None = None
    state: State | None = None

    def step() -> tuple[Result | None, bool]:
        nonlocal work, state
        with store.reading():
            if work is None:
                work, state = begin(store), store.state
            elif store.state is not state:
                return None, True
            try:
                next(work)
            except StopIteration as end:
                return end.value, True
            return None, False

    try:
        while True:
            began = time.perf_counter()
            result, is_over = await uncancellable(asyncio.to_thread(step))
            if is_over:
                return result
            await pause(time.perf_counter() - began)
    finally:
        if work is not None:
            await asyncio.to_thread(work.close)
