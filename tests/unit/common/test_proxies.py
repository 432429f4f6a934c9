"""Errors for calls that a proxy answers or resets, by the details that gRPC reports."""

from __future__ import annotations

import grpc

from minimq_common import errors
from minimq_common.errors import MinimqError
from minimq_common.wire.proxies import proxy_error
from support.cases import for_each

INTERNAL, UNAVAILABLE = grpc.StatusCode.INTERNAL, grpc.StatusCode.UNAVAILABLE
RESET = "Stream removed (RST_STREAM (Received RST_STREAM with error code 2))"
PAGE = "Stream removed (Data frame with END_STREAM flag received) (RST_STREAM (Received RST_STREAM with error code 0))"
STATUS = "Received http2 header with status: "


@for_each(
    ("code", "details", "cls", "text"),
    [
        (UNAVAILABLE, f"{STATUS}502", errors.Unavailable, "HTTP status 502: it does not reach the server"),
        (INTERNAL, f"{STATUS}413", errors.RejectedByProxy, "HTTP status 413: the requests of one stream exceed"),
        (INTERNAL, f"{STATUS}404", errors.RejectedByProxy, "HTTP status 404: check its configuration"),
        (INTERNAL, RESET, errors.RejectedByProxy, "reset the stream: it lost the server, or, as with HTTP status 413"),
        (INTERNAL, PAGE, errors.Unavailable, "answered instead of the server, and the HTTP status was lost"),
    ],
)
def test_the_error_names_the_proxy_and_its_answer(
    code: grpc.StatusCode, details: str, cls: type[MinimqError], text: str
) -> None:
    error = proxy_error(code, details, "broker b")
    assert type(error) is cls
    assert error.message.startswith("a proxy in front of broker b ")
    assert text in error.message
