"""The process in which Spark runs the Python side of tasks and plans, one after the other."""

from __future__ import annotations

import gc
import os
import socket
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

_DAEMON: Final = "pyspark.daemon"
#: The next call loads some more, for instance that of Arrow's functions which the first rows need.
_CALLS: Final = 2

#: By process, since a forked one inherits these.
_calls: dict[int, int] = {}
_connections: dict[int, list[int]] = {}


class SentToWorkers:
    """Something that Spark copies to the worker of each task; base class, without fields."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Take the fields over. Java sends what the task is about next: see `acknowledge_now`."""
        self.__dict__.update(state)
        acknowledge_now()


def acknowledge_now() -> None:
    """Acknowledge what Java has sent to this worker so far; does nothing in any other process.

    Java sends a task in two parts, and its kernel holds the second back until the first is acknowledged. That of the
    worker would wait 40 ms for an answer to send along: with this, a task with few rows takes a third of the time.
    """
    option = getattr(socket, "TCP_QUICKACK", None)
    if option is None or not _is_worker():
        return
    process = os.getpid()
    if process not in _connections:  # those to Java: nothing else is connected yet
        _connections[process] = _connected()
    for number in _connections[process]:
        with suppress(OSError):
            connection = socket.socket(fileno=number)
            try:
                connection.setsockopt(socket.IPPROTO_TCP, option, 1)
            finally:
                connection.detach()


def spare_collector() -> None:
    """Keep what a worker has loaded out of the garbage collection that Spark has it do after each call.

    Looking through the modules of pandas, Arrow and gRPC takes 50 ms of a processor each time, more than most tasks
    read in. Does nothing but in a worker that Spark uses again, and nothing any more after its first calls: what is
    garbage then would stay.
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
