"""Requests in pieces: assembled, and bounded."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import grpc.aio
import pytest

from minimq_broker.calls import pieces as pieces_module
from minimq_broker.calls.pieces import IncompleteRequests
from minimq_common.errors import DeadlineExceeded, InvalidArgument, MessageTooLarge, MinimqError, SystemBusy
from minimq_proto.v1.broker_pb2 import Append, AppendRequest
from support.cases import for_each
from support.on_loop import on_loop

REQUEST = AppendRequest(appends=[Append(request_id=7, topic="orders", batch=bytes(10_000))])
ENCODED = REQUEST.SerializeToString()


def pieces(*sizes: int, encoded: bytes = ENCODED) -> list[AppendRequest]:
    cut, at = [], 0
    for number, size in enumerate(sizes):
        rest = len(encoded) - at - size
        cut.append(AppendRequest(piece_id=number, piece=encoded[at : at + size], rest=rest))
        at += size
    return cut


async def whole(incomplete: IncompleteRequests, received: Sequence[object], acknowledged: list[int]) -> AppendRequest:
    left = iter(received)

    async def read() -> object:
        return next(left)

    first = next(left)
    found: AppendRequest = await incomplete.whole(first, read, acknowledged.append, 20_000)
    return found


def test_pieces_make_the_request_and_each_is_acknowledged() -> None:
    acknowledged: list[int] = []
    received = pieces(5000, 5000, len(ENCODED) - 10_000)
    assert asyncio.run(whole(IncompleteRequests(20_000), received, acknowledged)) == REQUEST
    assert acknowledged == [0, 1, 2]


@for_each(
    ["received", "error"],
    [
        ([*pieces(5000), AppendRequest(appends=[Append(request_id=8, topic="orders")])], InvalidArgument),
        ([*pieces(5000), grpc.aio.EOF], InvalidArgument),
        ([AppendRequest(piece=bytes(5000), rest=20_000)], MessageTooLarge),
        (pieces(4095, len(ENCODED) - 4095), InvalidArgument),
        (pieces(5000, 5000, encoded=b"\xff" * 10_000), InvalidArgument),
    ],
)
def test_a_wrong_piece_ends_the_stream(received: Sequence[object], error: type[MinimqError]) -> None:
    incomplete = IncompleteRequests(11_000)
    with pytest.raises(error):
        asyncio.run(whole(incomplete, received, []))
    assert not incomplete.held


@on_loop
async def test_incomplete_requests_share_a_bound() -> None:
    incomplete, acknowledged = IncompleteRequests(11_000), asyncio.Event()
    first, last = pieces(6000, len(ENCODED) - 6000)
    arrived: asyncio.Future[AppendRequest] = asyncio.get_running_loop().create_future()
    waiting = asyncio.create_task(incomplete.whole(first, lambda: arrived, lambda _: acknowledged.set(), 20_000))
    await acknowledged.wait()
    with pytest.raises(SystemBusy):
        await whole(incomplete, pieces(6000, len(ENCODED) - 6000), [])
    arrived.set_result(last)
    assert await waiting == REQUEST
    assert not incomplete.held


@on_loop
async def test_a_piece_that_does_not_arrive_ends_the_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pieces_module, "_PIECE_TIMEOUT_S", 0.0)
    incomplete, never = IncompleteRequests(11_000), asyncio.get_running_loop().create_future()
    with pytest.raises(DeadlineExceeded):
        await incomplete.whole(pieces(5000)[0], lambda: never, lambda _: None, 20_000)
    assert not incomplete.held
