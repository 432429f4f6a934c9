"""Connections of this process as the kernel knows them.

gRPC lets a server end calls, but what it has to say last waits until the peer has read what came before.

The calls to the kernel do not release the interpreter's lock. A thread that does so gets it back after 5 ms
when another one is busy, and a look at some connections would last for seconds under the flood that it is to notice.
"""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import struct
import sys
from collections.abc import Callable, Collection, Iterator
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
#: Bytes of the longest address of a socket.
_NAME_BYTES = 128

_kernel = ctypes.PyDLL(None)


def peer_address(peer: str) -> str:
    """Return HOST:PORT of a peer as gRPC names it: "ipv4:127.0.0.1:4000" or "ipv6:%5B::1%5D:4000"."""
    host, _, port = unquote(peer).partition(":")[2].rpartition(":")
    return _address(host.strip("[]"), port)


def address_of(peer: str) -> str:
    """Return the address of a client, for the log: "127.0.0.1:40000", where gRPC has "ipv4:127.0.0.1:40000"."""
    return unquote(peer).partition(":")[2] or peer


def cut(addresses: Collection[str]) -> list[str]:
    """End the connections to some addresses at once; return the ones that were found. It takes time: not for a loop.

    Whatever is on its way there is lost, and what gRPC holds for it is given back. The other end sees that the
    connection broke.
    """
    return [found for descriptor, found in _connections() if found in addresses and _end(descriptor, found)]


def _end(descriptor: int, address: str) -> bool:
    try:
        own = os.dup(descriptor)
    except OSError as error:
        if error.errno != errno.EBADF:
            raise
        return False
    try:  # the number may be that of another connection by now
        return _peer(own) == address and _kernel.shutdown(own, socket.SHUT_RDWR) == 0
    finally:
        os.close(own)


class Traffic(NamedTuple):
    """Bytes that have come over a connection, and that have been sent and arrived there."""

    address: str
    received: int
    sent: int


def traffic(port: int) -> Iterator[Traffic]:
    """Yield the traffic of each connection that came to a port of this process. It takes time: not for a loop."""
    for descriptor, address in _connections():
        found = _traffic(descriptor)
        own = _name(_kernel.getsockname, descriptor)
        # The number may be that of another connection by now.
        if found is not None and own is not None and own[1] == port and _peer(descriptor) == address:
            yield Traffic(address, found[1], found[0])


def _traffic(descriptor: int) -> tuple[int, int] | None:
    info, size = ctypes.create_string_buffer(_INFO_BYTES), ctypes.c_uint(_INFO_BYTES)
    if _kernel.getsockopt(descriptor, socket.IPPROTO_TCP, socket.TCP_INFO, info, ctypes.byref(size)):
        return None
    sent, received = _TRAFFIC.unpack(info.raw[_AT:])
    return sent, received


def _connections() -> Iterator[tuple[int, str]]:
    for path in _OPEN_FILES.iterdir():
        descriptor = int(path.name)
        if (address := _peer(descriptor)) is not None:
            yield descriptor, address


def _peer(descriptor: int) -> str | None:
    found = _name(_kernel.getpeername, descriptor)
    return None if found is None else _address(*found)


def _name(ask: Callable[..., int], descriptor: int) -> tuple[str, int] | None:
    name, size = ctypes.create_string_buffer(_NAME_BYTES), ctypes.c_uint(_NAME_BYTES)
    if ask(descriptor, name, ctypes.byref(size)):
        return None
    family = int.from_bytes(name.raw[:2], sys.byteorder) if TELLS_TRAFFIC else name.raw[1]  # of BSD, after the length
    port = int.from_bytes(name.raw[2:4], "big")
    if family == socket.AF_INET:
        return socket.inet_ntop(family, name.raw[4:8]), port
    if family == socket.AF_INET6:
        return socket.inet_ntop(family, name.raw[8:24]), port
    return None


def _address(host: str, port: object) -> str:
    return f"{host.removeprefix('::ffff:').partition('%')[0]}:{port}"
