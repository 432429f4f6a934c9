"""Large requests are opened in turn, counted when they are, and keep nothing once they are refused."""

from __future__ import annotations

import asyncio
import math
from typing import Any

import pytest

from minimq_common import large_requests
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError
from minimq_common.intake import AROUND_REQUEST, Intake
from minimq_common.large_requests import LARGE_BYTES, Decoder, LargeRequest, Line
from minimq_common.protocol_bounds import MAX_NAMED
from minimq_proto.v1 import broker_pb2

PEER = "ipv4:127.0.0.1:1"
MIB = 1 << 20


@pytest.fixture
def intake() -> Intake:
    return Intake(1)


def decoder(intake: Intake, most: float = MIB, opened: float = math.inf, large: float = LARGE_BYTES) -> Decoder:
    made = Decoder(broker_pb2.CommitOffsetsRequest.FromString, most, opened, large)
    made.count_for(intake, PEER)
    return made


def commit(items: int) -> bytes:
    """Return a request of so many empty offsets."""
    number = broker_pb2.CommitOffsetsRequest.DESCRIPTOR.fields_by_name["offsets"].number
    return bytes((number << 3 | 2, 0)) * items


def opened(request: LargeRequest) -> Any:  # noqa: ANN401 - of any call
    return asyncio.run(request.open())


def test_a_large_request_counts_once_it_is_opened_or_given_up(intake: Intake) -> None:
    taken, large = intake.of(PEER), commit(LARGE_BYTES)
    decode = decoder(intake)
    small = decode(commit(10))
    assert len(small.offsets) == 10
    before = taken.bytes
    assert before == 20 + AROUND_REQUEST
    request = decode(large)
    assert isinstance(request, LargeRequest)
    assert taken.bytes == before
    assert len(opened(request).offsets) == MAX_NAMED + 1  # no more of a list that is too long
    assert taken.bytes == before + len(large) + AROUND_REQUEST
    del request
    assert taken.bytes == before + len(large) + AROUND_REQUEST
    decode(large)  # nobody wants it
    assert taken.bytes == before + 2 * (len(large) + AROUND_REQUEST)


def test_nothing_is_kept_of_one_that_is_too_large(intake: Intake) -> None:
    request = decoder(intake)(bytes(MIB + 1))
    assert intake.of(PEER).bytes == MIB + 1 + AROUND_REQUEST
    with pytest.raises(MessageTooLarge, match="1048577 bytes is over the limit of this call, 1048576 bytes"):
        opened(request)


def test_some_are_large_from_another_size_on_and_some_stay_bytes(intake: Intake) -> None:
    data = commit(LARGE_BYTES)
    assert isinstance(decoder(intake, large=len(data) + 1)(data), broker_pb2.CommitOffsetsRequest)
    assert isinstance(decoder(intake, math.inf, large=len(data))(data), LargeRequest)
    assert decoder(intake, opened=LARGE_BYTES - 1)(data) == data


def outcomes(requests: list[Any]) -> list[type | int]:
    """Return what comes of requests of one call that are served at the same time: the answer, or the error."""
    most = now = 0

    async def serve(request: Any, _: object) -> int:  # noqa: ANN401 - of any call
        nonlocal most, now
        now += 1
        most = max(most, now)
        await asyncio.sleep(0.01)
        now -= 1
        return len(request.offsets)

    async def run() -> list[type | int]:
        line = Line()

        async def outcome(request: LargeRequest) -> type | int:
            try:
                found: Any = await line.serve("Commit", request, serve, None)
            except MiniMQError as error:
                return type(error)
            return int(found)

        return await asyncio.gather(*map(outcome, requests))

    found = asyncio.run(run())
    assert most <= 1
    return found


def test_those_of_one_call_are_served_one_after_the_other(intake: Intake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_requests, "REFUSED_BYTES_PER_S", 1e9)
    decode = decoder(intake)
    topic = broker_pb2.QueueOffset(topic="t" * 100)
    valid = broker_pb2.CommitOffsetsRequest(offsets=[topic] * 1000).SerializeToString()
    requests = [valid, commit(LARGE_BYTES), b"\xff" * LARGE_BYTES, bytes(MIB + 1), valid]
    assert outcomes([decode(data) for data in requests]) == [
        1000,
        InvalidArgument,
        InvalidArgument,
        MessageTooLarge,
        1000,
    ]


def test_an_error_does_not_keep_what_was_refused(intake: Intake) -> None:
    request = decoder(intake)(commit(LARGE_BYTES))
    with pytest.raises(InvalidArgument, match="has 4097 items, the limit is 4096") as raised:
        asyncio.run(request.checked())
    error: BaseException | None = raised.value
    assert error is not None
    assert error.__context__ is None
    frame = error.__traceback__
    while frame is not None:
        values = frame.tb_frame.f_locals.values() if "large_requests" in frame.tb_frame.f_code.co_filename else ()
        assert not any(isinstance(value, broker_pb2.CommitOffsetsRequest | bytes) for value in values)
        frame = frame.tb_next
