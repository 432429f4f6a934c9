"""Speeds up the Python worker processes in which Spark runs tasks and plans, one after the other."""

from __future__ import annotations

import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_DAEMON: Final = "pyspark.daemon"
#: The second call also covers modules that the first rows load, such as functions of Arrow.
_CALLS: Final = 2

#: By process id, since forked processes inherit these.
_calls: dict[int, int] = {}
_connections: dict[int, list[int]] = {}


class WorkerPickle:
    """Base class, without fields, of objects that Spark copies to the worker of each task."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Restore the fields, and acknowledge them, because Java waits for that: see `acknowledge_now`."""
        self.__dict__.update(state)
        acknowledge_now()


def acknowledge_now() -> None:
    """Send TCP acknowledgements to Java now. Does nothing in processes that are not Spark workers.

    Java sends a task in two parts, and its kernel delays the second until the first is acknowledged. The worker's
    kernel delays acknowledgements by 40 ms. Without these delays, a task with few rows takes a third of the time.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not _is_worker():
        return
    process = os.getpid()
    if process not in _connections:  # at the first call, all connections are to Java
        _connections[process] = _connected()
    for number in _connections[process]:
        with suppress(OSError):
            connection = socket.socket(fileno=number)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
            finally:
                connection.detach()


def freeze_gc() -> None:
    """Exclude everything loaded so far from the garbage collection that Spark runs in a worker after each call.

    Traversing the modules of pandas, Arrow and gRPC takes 50 ms of CPU each time, more than most tasks need to read.
    Only works in the first calls in a worker that Spark reuses: later, it would also keep garbage.
    """
    process = os.getpid()
    calls = _calls.get(process, 0)
    if calls < _CALLS and _is_worker():
        _calls[process] = calls + 1
        gc.freeze()


def _is_worker() -> bool:
    return getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == _DAEMON


def _connected() -> list[int]:
    found = []
    for file in Path("/proc/self/fd").iterdir():
        with suppress(OSError):
            connection = socket.socket(fileno=int(file.name))  # an error unless it is a socket
            try:
                if connection.family in {socket.AF_INET, socket.AF_INET6} and connection.getpeername():
                    found.append(int(file.name))
            finally:
                connection.detach()
    return found
