"""First requests that do not come: whoever waits is told, and what gRPC reads is left to come to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minimq_common.errors import InvalidArgument, MiniMQError, SystemBusy
from minimq_common.first_requests import Arrivals, Begun

PATIENCE_S = 20.0


class Requests:
    """Requests of a call of which the first one comes when it is sent."""

    def __init__(self) -> None:
        self.sent = asyncio.Event()
        self.ended = asyncio.get_running_loop().create_future()

    def __aiter__(self) -> Requests:
        return self

    async def __anext__(self) -> bytes:
        try:
            await self.sent.wait()
        except asyncio.CancelledError:
            self.ended.set_result("cancelled")
            raise
        self.ended.set_result("read")
        return b"late"


async def check_that_reading_goes_on(requests: Requests) -> None:
    requests.sent.set()
    async with asyncio.timeout(PATIENCE_S):
        assert await requests.ended == "read"


def test_a_stream_whose_first_request_is_late_does_not_cancel_what_reads_it() -> None:
    async def run() -> None:
        requests = Requests()
        with pytest.raises(InvalidArgument, match=r"no request came within 0\.01 s"):
            await anext(Begun(requests, "Echo", 0.01))
        await check_that_reading_goes_on(requests)

    asyncio.run(run())


def test_streams_take_turns() -> None:
    async def run() -> None:
        turns = asyncio.Semaphore(1)
        first, second = Requests(), Requests()
        reading = [asyncio.ensure_future(anext(Begun(each, "Echo", PATIENCE_S, turns))) for each in (first, second)]
        second.sent.set()
        await asyncio.sleep(0.01)
        assert not any(each.done() for each in reading)
        first.sent.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*reading) == [b"late", b"late"]

    asyncio.run(run())


def test_of_the_connection_with_most_calls_the_one_that_has_waited_longest_gives_way() -> None:
    async def run() -> None:
        arrivals, calls = Arrivals(3), [Requests() for _ in range(4)]

        async def outcome(requests: Requests, peer: str) -> Any:  # noqa: ANN401 - of any call
            try:
                return await arrivals.receive(requests, "Echo", peer)
            except MiniMQError as error:
                return type(error)

        peers = ["ipv4:127.0.0.1:1", "ipv4:127.0.0.1:2", "ipv4:127.0.0.1:2", "ipv4:127.0.0.1:3"]
        waiting = [asyncio.ensure_future(outcome(*each)) for each in zip(calls, peers, strict=True)]
        async with asyncio.timeout(PATIENCE_S):
            assert await waiting.pop(1) is SystemBusy
            await check_that_reading_goes_on(calls.pop(1))
            for requests in calls:
                requests.sent.set()
            assert await asyncio.gather(*waiting) == [b"late"] * 3

    asyncio.run(run())
