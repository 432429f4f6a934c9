"""A small HTTP or HTTPS server for scrapes, with a bounded number of threads and connections."""

from __future__ import annotations

import contextlib
import socket
import threading
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from prometheus_client import CollectorRegistry, make_wsgi_app

from minimq_common.security.server_secrets import ServerSecrets

#: Most connections at one time. Each has a thread; a scrape keeps its own for some milliseconds.
MAX_CONNECTIONS = 16
#: Seconds for which a connection may say nothing, or take nothing of its answer.
_SILENCE_S = 5.0
#: Seconds for which a new connection waits for the threads of the connections that were closed for it.
_ROOM_S = 1.0


class ScrapeServer(ThreadingMixIn, WSGIServer):
    """Answers each connection by a thread of its own, of which there are never more than `MAX_CONNECTIONS`.

    The oldest connection that has asked nothing yet is closed for a new one, so a scrape is served however many others
    are open and silent. When all of them have asked, the new one is closed. `serve` starts it.
    """

    daemon_threads = True
    request_queue_size = 128
    #: For HTTPS; None for HTTP.
    secrets: ServerSecrets | None = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        #: Protects what follows; notified when a thread ends.
        self._changed = threading.Condition()
        self._busy = 0  # threads
        #: The connections that have asked nothing yet, the oldest first.
        self._silent: dict[socket.socket, None] = {}
        super().__init__(*args, **kwargs)

    def get_request(self) -> tuple[Any, Any]:
        """Take a connection. Its handshake is left to its thread, where silence counts as that of a scrape does."""
        request, address = super().get_request()
        if self.secrets is not None:
            request = self.secrets.context().wrap_socket(request, server_side=True, do_handshake_on_connect=False)
        return request, address

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer a connection, or close it when there is no room."""
        with self._changed:
            if self._busy >= MAX_CONNECTIONS:
                self._close_oldest()
            if not self._changed.wait_for(lambda: self._busy < MAX_CONNECTIONS, _ROOM_S):
                self.shutdown_request(request)
                return
            self._busy += 1
            self._silent[request] = None
        super().process_request(request, client_address)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection on a thread of its own."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            with self._changed:
                self._busy -= 1
                self._silent.pop(request, None)
                self._changed.notify_all()

    def has_asked(self, request: socket.socket) -> None:
        """Keep a connection from now on: its request has come whole."""
        with self._changed:
            self._silent.pop(request, None)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing: a peer that leaves or hangs is its own matter."""

    def _close_oldest(self) -> None:
        oldest = next(iter(self._silent), None)
        if oldest is not None:
            del self._silent[oldest]
            with contextlib.suppress(OSError):  # its thread, which reads from it, wakes and ends
                oldest.shutdown(socket.SHUT_RDWR)


class _Handler(WSGIRequestHandler):
    timeout = _SILENCE_S
    server: ScrapeServer

    def parse_request(self) -> bool:
        """Tell whether a request has come that can be answered."""
        is_request = super().parse_request()
        self.server.has_asked(self.connection)
        return is_request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - those of the base class
        """Log nothing."""


def serve(host: str, port: int, registry: CollectorRegistry, secrets: ServerSecrets | None = None) -> ScrapeServer:
    """Start to serve the metrics of a registry, on a thread of its own. Raises `OSError`."""
    family, *_ = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    kind = type("ScrapeServer", (ScrapeServer,), {"address_family": family, "secrets": secrets})
    server: ScrapeServer = make_server(host, port, make_wsgi_app(registry), kind, handler_class=_Handler)
    threading.Thread(target=server.serve_forever, name="scrapes", daemon=True).start()
    return server
