"""The wait that a server asks for, told by a server that is none of ours."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest

from minimq_common.errors import SystemBusy
from minimq_common.rpc import from_failure, from_rpc_error
from minimq_proto.v1.errors_pb2 import Failure


@pytest.mark.parametrize(
    ("said", "waits_s"), [("250", 0.25), ("9" * 18, 60.0), ("9" * 5000, 0.0), ("-1", 0.0), ("soon", 0.0), ("", 0.0)]
)
def test_the_wait_in_the_metadata_of_a_call(said: str, waits_s: float) -> None:
    trailing = grpc.aio.Metadata(("minimq-code", SystemBusy.code), ("minimq-retry-after-ms", said))
    call = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), trailing, "busy")

    error = from_rpc_error(call, "broker 127.0.0.1:1")

    assert isinstance(error, SystemBusy)
    assert error.retry_after_s == waits_s


@pytest.mark.parametrize(("said", "waits_s"), [(250, 0.25), ((1 << 63) - 1, 60.0), (-(1 << 63), 0.0)])
def test_the_wait_inside_of_an_answer(said: int, waits_s: float) -> None:
    assert from_failure(Failure(code=SystemBusy.code, retry_after_ms=said)).retry_after_s == waits_s
