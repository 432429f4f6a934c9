"""The append streams of a producer, one to each broker that it sends to."""

from __future__ import annotations

import threading

from minimq.connection.connection import Connection
from minimq.sending.append_stream import AppendStream
from minimq_common.errors import Closed


class AppendStreams:
    """Append streams by address, opened when they are first needed. Thread-safe."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._lock = threading.Lock()  # held while a stream is opened, so that there is one to each broker
        self._by_address: dict[str, AppendStream] = {}
        self._closed = False

    def to(self, address: str) -> AppendStream:
        """Return the stream to a broker; open one if there is none, or if it has ended."""
        stream = self._by_address.get(address)
        if stream is not None and not stream.ended:
            return stream
        with self._lock:
            if self._closed:
                raise Closed("the producer was closed before the message was acknowledged")
            stream = self._by_address.get(address)
            if stream is None or stream.ended:
                stream = self._by_address[address] = AppendStream(self._connection, address)
            return stream

    def forget(self, address: str, stream: object) -> None:
        """Open another one for the next batch if this is the stream to a broker."""
        with self._lock:
            if self._by_address.get(address) is stream:
                del self._by_address[address]

    def close(self) -> None:
        """End all streams, and open none any more."""
        with self._lock:
            self._closed = True
        for stream in self._all():
            stream.close()

    def _all(self) -> list[AppendStream]:
        with self._lock:
            return list(self._by_address.values())
