"""Work that both faces of a client share: generators that yield what the event loop of a connection is to run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

from minimq.connection.client import ClusterClient

T = TypeVar("T")


class LoopStep(NamedTuple):
    """A coroutine, and the client on whose event loop it is to run."""

    client: ClusterClient
    make: Callable[[], Coroutine[Any, Any, Any]]


#: What is between the steps runs where the caller is; it gets the result of each, or its error.
Steps = Generator[LoopStep, Any, T]


def run_steps(steps: Steps[T]) -> T:
    """Run all steps, and return the result; waits."""
    try:
        step = next(steps)
        while True:
            try:
                result = step.client.wait(step.make)
            except BaseException as error:  # noqa: BLE001 - it decides what follows
                step = steps.throw(error)
            else:
                step = steps.send(result)
    except StopIteration as end:
        value: T = end.value
        return value


async def await_steps(steps: Steps[None], *, is_quick: bool) -> None:
    """Do as `run_steps`, and suspend a task instead; what comes before the first step has a thread unless quick."""
    with suppress(StopIteration):
        step = next(steps, None) if is_quick else await asyncio.to_thread(next, steps, None)
        while step is not None:
            try:
                result = await step.client.result(step.make)
            except BaseException as error:  # noqa: BLE001 - it decides what follows
                step = steps.throw(error)
            else:
                step = steps.send(result)
