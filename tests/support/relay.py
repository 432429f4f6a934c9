"""A stretch of network between a client and a server that loses what the server says."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self


class Relay:
    """Passes TCP connections on to a server, as they are, until told otherwise. A context manager; thread-safe.

    Attributes:
        address: HOST:PORT at which clients reach the server through it.
    """

    def __init__(self, server: str) -> None:
        host, port = server.rsplit(":", 1)
        self._server = host, int(port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._lock = threading.Lock()
        self._takes_connections = True
        self._connections: list[tuple[socket.socket, socket.socket]] = []
        #: Connections to the server whose answers go nowhere.
        self._deaf: set[socket.socket] = set()
        #: How many bytes the server may still say on all connections together; None: as many as it likes.
        self._left: int | None = None
        #: Bytes a second that clients may send on all connections together; None for any number.
        self.uplink_bytes_per_s: float | None = None
        #: Bytes that clients have sent.
        self.sent = 0
        self._is_over = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._is_over.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that accepts
        self._listener.close()
        self._threads[0].join()
        self.cut()
        for thread in self._threads:
            thread.join()

    def lose_answers(self) -> None:
        """Let nothing through any more that the server says on the connections that there are now."""
        with self._lock:
            self._deaf.update(to_server for _, to_server in self._connections)

    def lose_answers_after(self, size: int) -> None:
        """Let nothing through any more that the server says, on any connection, once it has said `size` more bytes."""
        with self._lock:
            self._left = size

    def cut(self, *, for_good: bool = False) -> None:
        """End the connections that there are now; `for_good`: no other comes about before `mend` is called."""
        with self._lock:
            self._takes_connections = not for_good
            connections, self._connections = self._connections, []
        for pair in connections:
            for end in pair:
                with contextlib.suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)

    def mend(self) -> None:
        """Let connections come about again, and let through what the server says on them."""
        with self._lock:
            self._takes_connections = True
            self._left = None

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                client, _ = self._listener.accept()
                try:
                    server = socket.create_connection(self._server)
                except OSError:  # it is not up; the client notices as it would without us
                    client.close()
                    continue
                with self._lock:
                    if not self._takes_connections:
                        client.close()
                        server.close()
                        continue
                    self._connections.append((client, server))
                    self._threads.append(threading.Thread(target=self._connect, args=(client, server)))
                    self._threads[-1].start()

    def _connect(self, client: socket.socket, server: socket.socket) -> None:
        back = threading.Thread(target=self._pass_on, args=(server, client, self._what_is_not_lost))
        with client, server:
            back.start()
            self._pass_on(client, server, self._delayed)
            back.join()

    def _pass_on(
        self, source: socket.socket, target: socket.socket, choose: Callable[[socket.socket, bytes], bytes]
    ) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                target.sendall(choose(source, data))
        for end in (source, target):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _delayed(self, _: socket.socket, data: bytes) -> bytes:
        with self._lock:  # held during the delay: the connections share the line
            self.sent += len(data)
            if self.uplink_bytes_per_s is not None:
                self._is_over.wait(len(data) / self.uplink_bytes_per_s)
        return data

    def _what_is_not_lost(self, server: socket.socket, data: bytes) -> bytes:
        """Return what may still go on of what a server has said."""
        with self._lock:
            if server in self._deaf:
                return b""
            if self._left is not None:
                data = data[: self._left]
                self._left -= len(data)
            return data
