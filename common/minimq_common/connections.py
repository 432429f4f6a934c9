"""Connections of this process as the kernel knows them.

gRPC lets a server end calls, but what it has to say last waits until the peer has read what came before.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple
from urllib.parse import unquote

#: Where the kernel lists what this process has open.
_OPEN_FILES = Path("/dev/fd")
#: Whether the kernel tells the traffic of connections.
TELLS_TRAFFIC = sys.platform == "linux"
#: Where `struct tcp_info` has the bytes that were acknowledged by the other end, and those received.
_AT, _TRAFFIC = 120, struct.Struct("=QQ")
_INFO_BYTES = _AT + _TRAFFIC.size


def peer_address(peer: str) -> str:
    """Return HOST:PORT of a peer as gRPC names it: "ipv4:127.0.0.1:4000" or "ipv6:%5B::1%5D:4000"."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _address(host.strip("[]"), port)


def cut(addresses: Collection[str]) -> list[str]:
    """End the connections to some addresses at once; return those that were found. It takes time: not for a loop.

    Whatever is on its way there is lost, and what gRPC holds for it is given back. The other end sees that the
    connection broke.
    """
    found = []
    for address, connection in _connections():
        if address in addresses:
            with contextlib.suppress(OSError):  # it has ended meanwhile
                connection.shutdown(socket.SHUT_RDWR)
                found.append(address)
    return found


class Traffic(NamedTuple):
    """Bytes that have come over a connection, and that have been sent and arrived there."""

    address: str
    received: int
    sent: int


def traffic() -> Iterator[Traffic]:
    """Yield the traffic of each connection. It takes time: not for a loop."""
    for address, connection in _connections():
        sent, received = _TRAFFIC.unpack(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)[_AT:])
        yield Traffic(address, received, sent)


def _connections() -> Iterator[tuple[str, socket.socket]]:
    """Yield the address of the other end of each connection, and the connection itself until the next one."""
    for path in list(_OPEN_FILES.iterdir()):
        try:
            descriptor = os.dup(int(path.name))
        except OSError as error:
            if error.errno != errno.EBADF:  # otherwise it was closed meanwhile
                raise
            continue
        try:
            connection = socket.socket(fileno=descriptor)
        except OSError:  # a file
            os.close(descriptor)
            continue
        with connection, contextlib.suppress(OSError):  # one that listens has no peer
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                host, port = connection.getpeername()[:2]
                yield _address(host, port), connection


def _address(host: str, port: object) -> str:
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"
