"""The writer of answers, against writes that fail."""

from __future__ import annotations

import asyncio

import pytest

from minimq_broker.calls.streams import AnswerStream
from minimq_common.wire.unsent import UnsentBudget


class FailingCall:
    """The call of a client: each write fails, at once or after it was under way."""

    def __init__(self, *, at_once: bool) -> None:
        self._at_once = at_once

    def peer(self) -> str:
        return "ipv4:127.0.0.1:1"

    async def write(self, _: bytes) -> None:
        if not self._at_once:
            written = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_soon(written.set_result, None)
            await written
        raise ValueError("no memory")


async def never() -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("at_once", [True, False])
def test_a_write_that_fails_ends_the_stream_with_its_error(at_once: bool) -> None:
    async def serve() -> None:
        soon = asyncio.get_running_loop().call_soon
        answers = AnswerStream(FailingCall(at_once=at_once), b"".join, soon, UnsentBudget(1 << 20))
        receiver = asyncio.create_task(never())
        answers.expected = 2
        answers.add(b"one")
        soon(answers.add, b"two")
        with pytest.raises(ValueError, match="no memory"):
            await asyncio.wait_for(answers.serve(receiver), 30)
        assert answers.is_closed
        receiver.cancel()

    asyncio.run(serve())
