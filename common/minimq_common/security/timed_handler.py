"""Asks by HTTP and HTTPS, and waits no longer for all of an answer than it has time for.

`urllib` bounds each read of a socket alone: a server that sends byte by byte would hold its caller for hours.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
from http.client import HTTPConnection, HTTPResponse, HTTPSConnection
from typing import TYPE_CHECKING, Any
from urllib.request import AbstractHTTPHandler, Request

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer


class TimedHandler(AbstractHTTPHandler):
    """A handler of an opener of `urllib`, for one request and its answer."""

    def __init__(self, trusted: ssl.SSLContext, whole_s: float) -> None:
        super().__init__()
        self._trusted = trusted
        self._whole_s = whole_s
        self._until = time.monotonic() + whole_s

    http_request = https_request = AbstractHTTPHandler.do_request_

    def http_open(self, request: Request) -> HTTPResponse:
        """Ask by HTTP."""
        return self.do_open(self._plain, request)  # type: ignore[arg-type]  # a function makes one, too

    def https_open(self, request: Request) -> HTTPResponse:
        """Ask by HTTPS."""
        return self.do_open(self._encrypted, request)  # type: ignore[arg-type]

    def _plain(self, host: str, *, timeout: float) -> HTTPConnection:
        return self._timed(HTTPConnection(host, timeout=timeout))

    def _encrypted(self, host: str, *, timeout: float) -> HTTPConnection:
        return self._timed(HTTPSConnection(host, timeout=timeout, context=self._trusted))

    def _timed(self, connection: HTTPConnection) -> HTTPConnection:
        connection.response_class = self._response  # type: ignore[assignment]
        return connection

    def _response(self, sock: socket.socket, *args: Any, **named: Any) -> HTTPResponse:
        response = HTTPResponse(sock, *args, **named)
        response.fp.close()
        response.fp = io.BufferedReader(_TimedReader(sock, self._until, self._whole_s))
        return response


class _TimedReader(io.RawIOBase):
    """A stream of what comes from a socket until a time."""

    def __init__(self, sock: socket.socket, until: float, whole_s: float) -> None:
        self._sock = sock
        self._read_from = sock.makefile("rb", buffering=0)
        self._step_s = sock.gettimeout() or whole_s
        self._until = until
        self._whole_s = whole_s

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: WriteableBuffer) -> int | None:
        """Read what there is. Raises `TimeoutError`."""
        left_s = self._until - time.monotonic()
        if left_s > 0:
            self._sock.settimeout(min(self._step_s, left_s))
            try:
                return self._read_from.readinto(buffer)
            except TimeoutError:
                if self._step_s < left_s:
                    raise
        raise TimeoutError(f"its answer takes longer than {self._whole_s:g} s")

    def close(self) -> None:
        """Close it."""
        self._read_from.close()
        super().close()
