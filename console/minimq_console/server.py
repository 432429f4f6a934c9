"""Serves the console over HTTP."""

from __future__ import annotations

import logging
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import uvicorn
from starlette.datastructures import Headers
from starlette.types import ASGIApp
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from minimq_common.errors import CannotListen, InvalidArgument
from minimq_common.security.certificates import Pair, Trust, check_pair, server_context
from minimq_common.security.watched import Watched
from minimq_console.console import Console
from minimq_console.console_options import ConsoleOptions, prefix_of

#: Seconds that requests under way get at the end.
_GRACE_S = 2
_POLL_INTERVAL_S = 0.01
#: Maximum number of connections: a browser has one for its events, and others for its pages.
_MAX_CONNECTIONS = 2_000
#: Timeout in seconds for the head of a request, from the start of the connection or from the last response.
HEAD_S = 10.0


class ProxiedApp(ProxyHeadersMiddleware):
    """Takes the scheme, the address of the browser and the path prefix of the console from a trusted proxy."""

    def __init__(self, app: Any, trusted: Sequence[str] = (), root_path: str = "") -> None:
        super().__init__(app, list(trusted))
        self._root_path = root_path

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Serve one request."""
        if scope["type"] == "http":
            peer, root_path = (scope.get("client") or ("",))[0], self._root_path
            if peer in self.trusted_hosts:
                root_path = prefix_of(Headers(scope=scope).get("x-forwarded-prefix", "")) or root_path
            scope["root_path"] = root_path
            scope["path"] = _prefixed(scope["path"], root_path)
            scope["raw_path"] = _prefixed(scope["raw_path"].decode("ascii"), root_path).encode()
        await super().__call__(scope, receive, send)


def _prefixed(path: str, root_path: str) -> str:
    if path == root_path:
        return f"{path}/"
    return path if path.startswith(f"{root_path}/") else root_path + path


class BoundedConnection(H11Protocol):
    """Closes itself if no head of a request is complete after `HEAD_S`, even while bytes arrive. On the event loop."""

    def connection_made(self, transport: Any) -> None:
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self._wait_for_request(None)

    def on_response_complete(self) -> None:
        """Start the timeout of the next request."""
        answered = self.cycle
        super().on_response_complete()
        self._wait_for_request(answered)

    def _wait_for_request(self, last: RequestResponseCycle | None) -> None:
        self.loop.call_later(HEAD_S, self._close_unless_asked, last)

    def _close_unless_asked(self, last: RequestResponseCycle | None) -> None:
        if self.cycle is last and not self.transport.is_closing():
            self.transport.close()


class ConsoleServer:
    """Serves a console at one address, on a thread, within the block. At its end, requests get `_GRACE_S` to finish."""

    def __init__(self, app: ASGIApp, console: Console, options: ConsoleOptions) -> None:
        tls = _tls_context(options.tls_certificate, options.tls_key) if options.is_secure else None
        self._console = console
        self._socket = _listen(options.host, options.port)
        host, port = options.host, self._socket.getsockname()[1]
        scheme, host = "http" if tls is None else "https", f"[{host}]" if ":" in host else host
        #: The URL for a browser, unless it uses a proxy.
        self.address = f"{scheme}://{host}:{port}"
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.ERROR,  # invalid requests would fill the log
            access_log=False,
            server_header=False,
            proxy_headers=False,  # `ProxiedApp` reads them
            http=BoundedConnection,
            ws="none",
            limit_concurrency=_MAX_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_context_factory=None if tls is None else lambda *_: tls,
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(
            target=self._server.run, args=([self._socket],), name="minimq-console", daemon=True
        )

    @property
    def is_running(self) -> bool:
        return self._thread.is_alive()

    def __enter__(self) -> Self:
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(_POLL_INTERVAL_S)
        return self

    def __exit__(self, *_: object) -> None:
        self._console.end_streams()
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()


def _tls_context(certificate: str, key: str) -> ssl.SSLContext:
    def made(found: Sequence[bytes]) -> ssl.SSLContext:
        pair = Pair(*found)
        check_pair(pair, f"--tls-certificate {certificate} and --tls-key {key}")
        context = server_context(Trust(b"", pair), requires_certificates=False)
        context.sni_callback = renew
        return context

    def renew(connection: ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
        connection.context = contexts.get()

    contexts = Watched([Path(certificate), Path(key)], made)
    return contexts.get()


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise InvalidArgument(f"port is {port}: it must be 0 to 65535")
    try:
        [family, *_], *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((host, port), family=family, backlog=_MAX_CONNECTIONS)
    except OSError as error:
        raise CannotListen(
            f"the console cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
        ) from error
