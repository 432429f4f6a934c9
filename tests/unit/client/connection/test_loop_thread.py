"""Code that runs beside the event loop of a connection."""

from __future__ import annotations

import asyncio
from typing import Any, NoReturn

import pytest

from minimq.connection.loop_thread import off_loop, on_own_thread
from minimq_common.errors import Closed


@pytest.mark.parametrize(
    ("text", "raised"),
    [
        ("can't start new thread", RuntimeError),
        ("cannot schedule new futures after interpreter shutdown", Closed),
        ("can't create new thread at interpreter shutdown", Closed),
    ],
)
def test_a_thread_that_does_not_start_ends_the_client_only_with_the_process(
    monkeypatch: pytest.MonkeyPatch, text: str, raised: type[Exception]
) -> None:
    def fail(*_: object) -> NoReturn:
        raise RuntimeError(text)

    async def run() -> None:
        monkeypatch.setattr(asyncio.get_running_loop(), "run_in_executor", fail)
        with pytest.raises(raised):
            await off_loop(str)

    asyncio.run(run())


@pytest.mark.parametrize("error", [ValueError, StopIteration, SystemExit, KeyboardInterrupt])
def test_an_error_of_user_code_reaches_the_caller_and_leaves_the_loop_running(error: type[BaseException]) -> None:
    def call() -> Any:
        raise error("reason")

    async def run() -> None:
        with pytest.raises((ValueError, RuntimeError), match="reason"):
            await on_own_thread(call)

    asyncio.run(run())
