"""The meaning of failed calls: the wait that a server asks for, and the reason why it is not reached."""

from __future__ import annotations

import grpc
import grpc.aio

from minimq_common.errors import SystemBusy, Unavailable
from minimq_common.wire.rpc import from_rpc_error
from support.cases import for_each


@for_each(
    ("said", "waits_s"), [("250", 0.25), ("9" * 18, 60.0), ("9" * 5000, 0.0), ("-1", 0.0), ("soon", 0.0), ("", 0.0)]
)
def test_the_wait_in_the_metadata_of_a_call(said: str, waits_s: float) -> None:
    trailing = grpc.aio.Metadata(("minimq-code", SystemBusy.code), ("minimq-retry-after-ms", said))
    call = grpc.aio.AioRpcError(grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.aio.Metadata(), trailing, "busy")

    error = from_rpc_error(call, "broker 127.0.0.1:1")

    assert isinstance(error, SystemBusy)
    assert error.retry_after_s == waits_s


@for_each(
    ("details", "said"),
    [
        ("Stream removed (recvmsg:Connection reset by peer)", "the connection broke"),
        ("Socket closed", "the connection broke"),
        ("Broken pipe", "the connection broke"),
        ("UNAVAILABLE: ipv4:127.0.0.1:1: Handshake read failed", "the connection broke"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: recvmsg:Connection reset by peer",
            "the connection broke",
        ),
        ("failed to connect to all addresses; last error: UNKNOWN: Connection refused", "nothing listens there"),
        (
            "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: connection attempt timed out "
            "before receiving SETTINGS frame",
            "it does not answer",
        ),
    ],
)
def test_why_a_peer_is_not_reached_is_told_in_words(details: str, said: str) -> None:
    call = grpc.aio.AioRpcError(grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), details)

    error = from_rpc_error(call, "broker 127.0.0.1:1")

    assert isinstance(error, Unavailable)
    assert error.message == f"broker 127.0.0.1:1 is not reached: {said}"
