"""First requests that do not come: whoever waits is told, and what gRPC reads is left to come to its end."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minimq_common.errors import InvalidArgument, MiniMQError, SystemBusy
from minimq_common.first_requests import AwaitedRequests, Begun
from minimq_common.large_requests import Decoder, LargeRequest

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


async def outcome(arrivals: AwaitedRequests, requests: Requests, peer: str) -> Any:  # noqa: ANN401 - of any call
    try:
        return await arrivals.receive(requests, "Echo", peer)
    except MiniMQError as error:
        return type(error)


def test_a_call_whose_request_does_not_come_gives_way_to_those_that_wait() -> None:
    async def run() -> None:
        arrivals, calls = AwaitedRequests(1, patience_s=0.05), [Requests() for _ in range(2)]
        calls[1].sent.set()
        first, second = (asyncio.ensure_future(outcome(arrivals, each, "ipv4:127.0.0.1:1")) for each in calls)
        async with asyncio.timeout(PATIENCE_S):
            assert await first is SystemBusy
            assert await second == b"late"
            await check_that_reading_goes_on(calls[0])

    asyncio.run(run())


def test_calls_of_one_connection_wait_for_each_other_and_others_do_not_wait_for_them() -> None:
    async def run() -> None:
        arrivals, order = AwaitedRequests(1, patience_s=PATIENCE_S), []
        first = Requests()

        async def call(requests: Requests, name: str) -> None:
            assert await outcome(arrivals, requests, name[0]) == b"late"
            order.append(name)

        names = ["a1", "a2", "a3", "b1", "c1"]
        waiting = [asyncio.ensure_future(call(first if name == "a1" else sent(), name)) for name in names]
        await asyncio.sleep(0)
        left = asyncio.ensure_future(call(sent(), "b2"))
        await asyncio.sleep(0)
        left.cancel()
        first.sent.set()
        async with asyncio.timeout(PATIENCE_S):
            await asyncio.gather(*waiting)
        assert order == ["a1", "a2", "b1", "c1", "a3"]
        assert await outcome(arrivals, sent(), "a") == b"late"

    asyncio.run(run())


def sent() -> Requests:
    requests = Requests()
    requests.sent.set()
    return requests


def test_who_was_prompt_does_not_wait_for_requests_of_others() -> None:
    async def run() -> None:
        arrivals = AwaitedRequests(8, patience_s=PATIENCE_S)
        assert await outcome(arrivals, sent(), "prompt") == b"late"
        slow = [Requests() for _ in range(20)]
        calls = [asyncio.ensure_future(outcome(arrivals, each, f"peer-{number}")) for number, each in enumerate(slow)]
        await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE_S / 2):
            assert [await outcome(arrivals, sent(), "prompt") for _ in range(3)] == [b"late"] * 3
        for requests in slow:
            requests.sent.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*calls) == [b"late"] * 20

    asyncio.run(run())


def test_whose_request_was_too_large_is_not_prompt_any_more() -> None:
    class TooLarge(Requests):
        async def __anext__(self) -> Any:  # noqa: ANN401 - of any call
            return Decoder(None, most=1)(b"far too large")

    async def run() -> None:
        arrivals = AwaitedRequests(4, patience_s=PATIENCE_S)
        for peer in ("small", "large"):
            assert await outcome(arrivals, sent(), peer) == b"late"
        assert isinstance(await outcome(arrivals, TooLarge(), "large"), LargeRequest)
        slow = [Requests() for _ in range(3)]
        calls = [asyncio.ensure_future(outcome(arrivals, each, "slow")) for each in slow]
        await asyncio.sleep(0)
        waits = asyncio.ensure_future(outcome(arrivals, sent(), "large"))
        for _ in range(3):  # time enough for the other one, if it were let in
            assert await outcome(arrivals, sent(), "small") == b"late"
        assert not waits.done()
        for requests in slow:
            requests.sent.set()
        async with asyncio.timeout(PATIENCE_S):
            assert await asyncio.gather(*calls, waits) == [b"late"] * 4

    asyncio.run(run())
