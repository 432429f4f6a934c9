"""Fetches the keys of an issuer by HTTPS, with limits for time and size."""

from __future__ import annotations

import socket
import ssl
from base64 import b64encode
from contextlib import closing, suppress
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from threading import Event, Timer
from urllib.parse import SplitResult, unquote, urlsplit
from urllib.request import getproxies, proxy_bypass

from minimq_common.errors import InvalidArgument
from minimq_common.security.tokens import MAX_SET_BYTES

#: Timeouts in seconds of one socket operation, and of the whole fetch: a server may send byte by byte.
_STEP_S, _WHOLE_S = 5.0, 15.0
_OK = 200


def fetch(url: str, ca: Path | None) -> bytes:
    """Return the content at a URL, without following redirects. Raises `InvalidArgument`."""
    parts = urlsplit(url)
    where, is_late = f"{parts.scheme}://{parts.netloc}", Event()
    try:
        connection = _connection(parts, ca)
        sockets: list[socket.socket] = []

        def end() -> None:
            is_late.set()
            for each in filter(None, (*sockets, connection.sock)):
                with suppress(OSError):
                    each.shutdown(socket.SHUT_RDWR)  # ends a blocked read

        timer = Timer(_WHOLE_S, end)
        timer.daemon = True
        with closing(connection):
            timer.start()
            try:
                connection.connect()
                sockets.append(connection.sock)  # the connection drops its reference if the answer closes it
                if is_late.is_set():  # the timer may have fired before there was a socket
                    raise TimeoutError
                target = parts._replace(scheme="", netloc="", path=parts.path or "/").geturl()
                connection.request("GET", target, headers={"Accept": "application/json", "User-Agent": "minimq"})
                answer = connection.getresponse()
                data = answer.read(MAX_SET_BYTES + 1)
            finally:
                timer.cancel()
        if is_late.is_set():
            raise TimeoutError
    except (OSError, HTTPException, ValueError) as error:
        reason = f"{type(error).__name__}: {error}"
        if is_late.is_set():
            reason = f"TimeoutError: its answer takes longer than {_WHOLE_S:g} s"
        raise InvalidArgument(f"{where} is not reached: {reason}"[:500]) from None
    if answer.status != _OK:
        raise InvalidArgument(f"{where} answers with status {answer.status}; redirects are not followed")
    if len(data) > MAX_SET_BYTES:
        raise InvalidArgument(f"the answer of {where} has over {MAX_SET_BYTES} bytes")
    return data


def _connection(parts: SplitResult, ca: Path | None) -> HTTPConnection:
    if parts.scheme == "http":  # only allowed for this machine, so without a proxy
        return HTTPConnection(parts.netloc, timeout=_STEP_S)
    try:
        trusted = ssl.create_default_context(cafile=ca)
    except (OSError, ssl.SSLError) as error:
        raise InvalidArgument(f"the certificates in {ca} cannot be used: {error.strerror or error}") from None
    proxy = "" if proxy_bypass(parts.netloc) else getproxies().get("https", "")
    if not proxy:
        return HTTPSConnection(parts.netloc, timeout=_STEP_S, context=trusted)
    by = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
    connection = HTTPSConnection(by.netloc.rpartition("@")[2], timeout=_STEP_S, context=trusted)
    user = f"{unquote(by.username or '')}:{unquote(by.password or '')}".encode()
    headers = {} if by.username is None else {"Proxy-Authorization": f"Basic {b64encode(user).decode()}"}
    connection.set_tunnel(parts.netloc, headers=headers)
    return connection
