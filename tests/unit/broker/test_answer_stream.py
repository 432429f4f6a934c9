"""Answers of one stream: gathered while a write is under way, and ended with it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import grpc.aio
import pytest

from minimq_broker.services.stream_writer import AnswerStream
from minimq_common.wire.unsent import Unsent

PATIENCE_S = 40.0


class Call:
    """The context of a stream whose writes end when the test says so."""

    def __init__(self) -> None:
        self.written: list[bytes] = []
        self.ends: list[asyncio.Future[None]] = []

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, data: bytes) -> None:
        self.written.append(data)
        self.ends.append(asyncio.get_running_loop().create_future())
        await self.ends[-1]


async def idle() -> None:
    await asyncio.Event().wait()


def on(
    test: Callable[[Call, AnswerStream, Unsent], Awaitable[None]],
    encode: Callable[[list[Any]], bytes] = b"".join,
) -> None:
    """Run a test with a stream, on a loop of its own."""

    async def run() -> None:
        call, unsent = Call(), Unsent(1 << 20)
        answers = AnswerStream(call, encode, asyncio.get_running_loop().call_soon, unsent)
        async with asyncio.timeout(PATIENCE_S):
            await test(call, answers, unsent)

    asyncio.run(run())


async def pass_on() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize("error", [asyncio.CancelledError(), grpc.aio.InternalError("broken")])
def test_a_write_that_breaks_ends_the_stream(error: BaseException) -> None:
    async def test(call: Call, answers: AnswerStream, _: Unsent) -> None:
        receiver = asyncio.create_task(idle())
        answers.expected = 2
        answers.add(b"a")
        await pass_on()
        answers.add(b"b")
        await pass_on()
        call.ends[0].set_exception(error)
        await answers.serve(receiver)
        receiver.cancel()
        assert (answers.is_closed, call.written) == (True, [b"a"])

    on(test)


def test_an_answer_that_cannot_be_made_ends_the_stream_with_the_reason() -> None:
    def fail(_: object) -> bytes:
        raise ValueError("no such answer")

    async def test(_: Call, answers: AnswerStream, __: Unsent) -> None:
        receiver = asyncio.create_task(idle())
        answers.add(b"a")
        with pytest.raises(ValueError, match="no such answer"):
            await answers.serve(receiver)
        receiver.cancel()

    on(test, encode=fail)


def test_nothing_is_written_after_the_close_and_the_last_write_may_fail() -> None:
    async def test(call: Call, answers: AnswerStream, _: Unsent) -> None:
        answers.add(b"a")
        await pass_on()
        answers.close()
        answers.add(b"b")
        call.ends[0].set_exception(grpc.aio.InternalError("the call is over"))
        await pass_on()
        assert call.written == [b"a"]

    on(test)
