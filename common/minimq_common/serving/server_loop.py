"""The event loop of a server: one that takes all wake-ups of gRPC at once."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVarTuple, Unpack

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

Ts = TypeVarTuple("Ts")

#: More bytes than there are in the socket, whose buffer has room for some hundred writes.
_MOST = 1 << 14


class ServerLoop(asyncio.SelectorEventLoop):
    """An event loop on which gRPC finds what has come, however busy it is.

    A thread of gRPC puts each event of a server in a queue, and wakes the loop by a byte in a socket. The loop takes
    all events in one round, but only one of the bytes. So they add up where a round has many events, until the socket
    is full, and that thread waits until three quarters of it are empty: in two hundred rounds, for which everybody
    waits. Here all bytes are taken but the last one, which gRPC reads.

    It is the only loop of its process on which gRPC lives: two of them would take bytes from each other.
    """

    def add_reader(self, fd: FileDescriptorLike, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Watch a socket or the number of a file, as the base does."""
        if isinstance(fd, socket.socket) and fd.family == socket.AF_UNIX:
            super().add_reader(fd, functools.partial(_take_all, fd, functools.partial(callback, *args)))
        else:
            super().add_reader(fd, callback, *args)


def _take_all(wakeups: socket.socket, callback: Callable[[], object]) -> None:
    """Leave one byte, and call.

    Before the call, since the event of each byte that has come is in the queue then.
    """
    with contextlib.suppress(BlockingIOError):
        extra = len(wakeups.recv(_MOST, socket.MSG_PEEK)) - 1
        if extra > 0:
            wakeups.recv(extra)
    callback()
