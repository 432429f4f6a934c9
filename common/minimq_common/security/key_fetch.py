"""Fetches the keys of an issuer by HTTPS, within bounds of time and size.

`urllib` bounds each read of a socket alone: a server that sends byte by byte would hold its caller for hours.
"""

from __future__ import annotations

import io
import socket
import ssl
import time
import urllib.error
import urllib.request as requests
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from minimq_common.errors import InvalidArgument
from minimq_common.security.tokens import MAX_SET_BYTES

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

#: Seconds that one step of an answer may take, and the whole of it.
_STEP_S, _WHOLE_S = 5.0, 15.0
_OK = 200


def fetch(url: str, ca: Path | None) -> bytes:
    """Return what is at a URL; no redirect is followed."""
    parts = urlsplit(url)
    where = f"{parts.scheme}://{parts.netloc}"
    try:
        opener = requests.OpenerDirector()  # without the handlers of redirects, files and other protocols
        trusted = _trusted(ca)
        proxies = requests.ProxyHandler(None if parts.scheme == "https" else {})
        for handler in (
            *(proxies, _TimedHandler(trusted, _WHOLE_S)),
            *(requests.HTTPDefaultErrorHandler(), requests.HTTPErrorProcessor()),
        ):
            opener.add_handler(handler)
        asked = requests.Request(url, headers={"Accept": "application/json", "User-Agent": "minimq"})
        with opener.open(asked, timeout=_STEP_S) as answer:
            if answer.status != _OK:
                raise InvalidArgument(f"{where} answers with status {answer.status}")
            return _read(answer, where)
    except urllib.error.HTTPError as error:
        error.close()
        raise InvalidArgument(f"{where} answers with status {error.code}; redirects are not followed") from None
    except (OSError, HTTPException, ValueError) as error:
        reason = getattr(error, "reason", None) or error
        raise InvalidArgument(f"{where} is not reached: {type(reason).__name__}: {reason}"[:500]) from None


def _trusted(ca: Path | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificates in {ca} cannot be used: {error.strerror or error}") from None


def _read(answer: object, where: str) -> bytes:
    read = answer.read1  # type: ignore[attr-defined]  # of a response
    data = bytearray()
    while part := read(8 << 10):
        data += part
        if len(data) > MAX_SET_BYTES:
            raise InvalidArgument(f"the answer of {where} has over {MAX_SET_BYTES} bytes")
    return bytes(data)


class _TimedHandler(requests.AbstractHTTPHandler):
    """A handler of an opener of `urllib`, for one request and its answer."""

    def __init__(self, trusted: ssl.SSLContext, whole_s: float) -> None:
        super().__init__()
        self._trusted = trusted
        self._whole_s = whole_s
        self._until = time.monotonic() + whole_s

    http_request = https_request = requests.AbstractHTTPHandler.do_request_

    def http_open(self, request: requests.Request) -> HTTPResponse:
        """Ask by HTTP."""
        return self.do_open(self._plain, request)  # type: ignore[arg-type]  # a function makes one, too

    def https_open(self, request: requests.Request) -> HTTPResponse:
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
