"""Errors for calls that a proxy answers or resets in place of the server."""

from __future__ import annotations

import re

import grpc

from minimq_common import errors
from minimq_common.errors import MinimqError

#: gRPC's details if a proxy answered with an HTTP status other than 200.
_PROXY_STATUS = re.compile(r"Received http2 header with status: (\d{3})")
#: Statuses of proxies that do not reach the server, or gave up waiting, and the rest of the sentence.
_UNREACHED_STATUSES = {
    408: "no request came for longer than its timeout (nginx: client_body_timeout)",
    429: "too many requests",
    500: "it failed",
    502: "it does not reach the server",
    503: "it does not reach the server",
    504: "the server did not answer within its timeout (nginx: grpc_read_timeout)",
}
_TOO_LARGE = 413
#: gRPC's details if a stream was reset. Once nginx has passed on an answer, it does that instead of sending a status.
_RESET = "Received RST_STREAM"
#: gRPC's details if it handles the end of a proxy's page before the status. Servers end streams with trailers.
_PAGE_ENDED = "Data frame with END_STREAM"


def proxy_error(code: grpc.StatusCode, details: str, peer: str) -> MinimqError | None:
    """Convert gRPC's details of a failed call to an error if they come from a proxy, else return None."""
    proxy = f"a proxy in front of {peer}"
    if found := _PROXY_STATUS.search(details):
        status, answer = int(found[1]), f"{proxy} answered with HTTP status {found[1]}: "
    elif _RESET not in details or code is not grpc.StatusCode.INTERNAL:
        return None
    elif _PAGE_ENDED in details:
        text = "answered instead of the server, and the HTTP status was lost: the log of the proxy has it"
        return errors.Unavailable(f"{proxy} {text}")
    else:
        status, answer = _TOO_LARGE, f"{proxy} reset the stream: it lost the server, or, as with HTTP status 413, "
    if status in _UNREACHED_STATUSES:
        return errors.Unavailable(f"{answer}{_UNREACHED_STATUSES[status]}")
    if status == _TOO_LARGE:
        return errors.RejectedByProxy(
            f"{answer}the requests of one stream exceed its limit of the body size; remove that limit (nginx: "
            "client_max_body_size 0), or send smaller batches (batch_bytes)"
        )
    return errors.RejectedByProxy(f"{answer}check its configuration, and the address of the server")
