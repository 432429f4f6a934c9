"""Serves the console over HTTP."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from minimq_common.errors import CannotListen, InvalidArgument
from minimq_common.security.certificates import Pair, check_pair
from minimq_console.bounded_connection import BoundedConnection

#: Seconds for requests that are under way at the end.
_GRACE_S = 2
_LOOK_AGAIN_S = 0.01
#: Connections at once; who comes then is refused.
_MOST_CONNECTIONS = 200


class ConsoleServer:
    """One console at one address, served by a thread. Used by one thread."""

    def __init__(self, app: Starlette, host: str, port: int, tls: tuple[str, str] | None = None) -> None:
        if tls is not None:
            _check_pair(*tls)
        self._scheme = "http" if tls is None else "https"
        self._app = app
        self._socket = _listen(host, port)
        self._port: int = self._socket.getsockname()[1]
        self._host = host
        config = uvicorn.Config(
            app,
            log_config=None,
            log_level=logging.ERROR,  # whoever sends nonsense would fill the log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            http=BoundedConnection,
            ws="none",
            limit_concurrency=_MOST_CONNECTIONS,
            timeout_graceful_shutdown=_GRACE_S,
            ssl_certfile=None if tls is None else tls[0],
            ssl_keyfile=None if tls is None else tls[1],
        )
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._run, name="minimq-console", daemon=True)

    @property
    def address(self) -> str:
        """The address for a browser."""
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"{self._scheme}://{host}:{self._port}"

    @property
    def is_running(self) -> bool:
        """True while it serves."""
        return self._thread.is_alive()

    def start(self) -> None:
        """Serve, and return as soon as it does."""
        self._thread.start()
        while not self._server.started and self._thread.is_alive():
            time.sleep(_LOOK_AGAIN_S)

    def stop(self) -> None:
        """End: streams end, and requests that are under way have a moment to. Idempotent."""
        self._app.state.surroundings.end_streams()
        self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._server.run([self._socket])


@contextmanager
def serving(app: Starlette, host: str, port: int, tls: tuple[str, str] | None = None) -> Iterator[ConsoleServer]:
    """Serve a console within the block. Takes and raises as `ConsoleServer`."""
    server = ConsoleServer(app, host, port, tls)
    try:
        server.start()
        yield server
    finally:
        server.stop()


def _check_pair(certificate: str, key: str) -> None:
    try:
        pair = Pair(Path(certificate).read_bytes(), Path(key).read_bytes())
    except OSError as error:
        raise InvalidArgument(f"the console cannot read {error.filename}: {error.strerror}") from error
    check_pair(pair, f"--tls-certificate {certificate} and --tls-key {key}")


def _listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65_535:
        raise InvalidArgument(f"port is {port}: it must be 0 to 65535")
    try:
        [family, *_], *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise CannotListen(
            f"the console cannot listen on {host}:{port}: {error.strerror or error}; choose another --port or --host"
        ) from error
