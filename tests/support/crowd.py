"""Many connections of programs that are no clients, which say something, and then nothing."""

from __future__ import annotations

import contextlib
import resource
import socket
import ssl
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_DATA_BYTES = 1 << 16


def frame(kind: int, stream: int, payload: bytes = b"", *, flags: int = 0) -> bytes:
    """Return a frame of HTTP/2."""
    return struct.pack(">I", len(payload))[1:] + bytes([kind, flags]) + struct.pack(">I", stream) + payload


#: The first line of HTTP/2.
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_SETTINGS, _HEADERS, _CONTINUATION = 4, 1, 9
#: A header without an entry in any table: its name has 3 bytes, its value 255.
_HEADER = b"\x00\x03abc\x7f\x80\x01" + b"a" * 255

#: First words of those that do not complete the handshake of HTTP/2.
UNFINISHED: Mapping[str, bytes] = {
    "says nothing": b"",
    "half of the first line": PREFACE[:10],
    "the first line": PREFACE,
}
#: First words of those that complete it, and then stop.
CONNECTED: Mapping[str, bytes] = {
    "asks for nothing": PREFACE + frame(_SETTINGS, 0),
    "headers that do not end": PREFACE
    + frame(_SETTINGS, 0)
    + frame(_HEADERS, 1, _HEADER)
    + frame(_CONTINUATION, 1, _HEADER) * 40,
    "half of a frame": PREFACE + frame(_SETTINGS, 0) + frame(_HEADERS, 1, _HEADER)[:100],
}
#: The begin of a first record of TLS.
HALF_HELLO = bytes.fromhex("16030100c8010000c40303") + bytes(60)


@contextlib.contextmanager
def crowd(
    address: str, words: Sequence[bytes], count: int, context: ssl.SSLContext | None = None
) -> Iterator[list[socket.socket]]:
    """Yield connections to an address, each of which has said one of some words.

    Args:
        address: HOST:PORT.
        words: of which the connections take turns.
        count: of connections.
        context: of those that say it by TLS.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as connections:
        opened = []
        for number in range(count):
            plain = connections.enter_context(socket.create_connection((host, int(port)), timeout=30.0))
            one = connections.enter_context(context.wrap_socket(plain)) if context is not None else plain
            with contextlib.suppress(OSError):  # it may be cut off already
                one.sendall(words[number % len(words)])
            opened.append(one)
        yield opened


def wait_until_closed(connection: socket.socket, max_wait_s: float) -> None:
    """Return when the other end has closed a connection. Raises `TimeoutError`, also if it sends without an end."""
    connection.settimeout(max_wait_s)
    with contextlib.suppress(ConnectionError, ssl.SSLEOFError):
        for _ in range(100):
            if not connection.recv(_DATA_BYTES):
                return
        raise TimeoutError("it does not end")


def resident_mib(pid: int) -> float:
    """Return the memory of a process, without the pages of files."""
    _, resident, shared, *_ = Path(f"/proc/{pid}/statm").read_text().split()
    return (int(resident) - int(shared)) * resource.getpagesize() / (1 << 20)
