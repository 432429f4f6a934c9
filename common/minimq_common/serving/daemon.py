"""Running a server as a process: its event loop, logging, the ready line, signals and the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.metadata
import logging
import resource
import signal
import socket
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVarTuple, Unpack

from minimq_common.batch.header import warn_of_slow_checksums
from minimq_common.errors import MiniMQError
from minimq_common.serving.logs import LogFormat, SummingHandler, formatter

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

LogLevel = Literal["debug", "info", "warning", "error"]

log = logging.getLogger(__name__)


class Server(Protocol):
    """The methods of a server that `run` calls, all of them on one event loop."""

    @property
    def address(self) -> str:
        """HOST:PORT it serves at, once started."""

    @property
    def metrics_address(self) -> str:
        """HOST:PORT at which it shows its metrics, once started; empty when it does not."""

    async def start(self) -> None:
        """Return when requests are served. Raises `MiniMQError` when that cannot be."""

    async def stop(self) -> None:
        """End everything that `start` began, also when it was interrupted half-way. May be called twice."""


def version() -> str:
    """Return the version of the installed minimq, or say that this is a checkout."""
    try:
        return importlib.metadata.version("minimq")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def set_up_logging(level: LogLevel, log_format: LogFormat = "text") -> None:
    """Send log records of at least that level to stderr."""
    handler = SummingHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)


def run(role: str, server: Server, *, log_level: LogLevel, log_format: LogFormat = "text") -> None:
    """Serve until SIGTERM or SIGINT, then stop the server and return.

    Once the server serves, one line `ready ROLE HOST:PORT` is written to stdout, and nothing else ever: whoever
    started the process may wait for it and learn the port.

    A second signal of the same kind ends the process at once. (Not one of the other kind: Ctrl-C in a terminal
    reaches a whole group of processes, whose parent then sends SIGTERM as well.)
    """
    set_up_logging(log_level, log_format)
    open_more_files()
    gc.freeze()  # what was imported stays
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            runner.run(_serve(role, server))
    except MiniMQError as error:
        if log_format == "json":
            log.critical("failed error=%s", error)
        else:
            sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


def open_more_files() -> None:
    """Raise the limit of open files and sockets as far as the system allows."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(OSError, ValueError):  # macOS names a limit that it does not allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def _serve(role: str, server: Server) -> None:
    told_to_stop = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("stopping signal=%s", number.name)
        # The kernel's default needs no event loop: it also ends a process whose loop hangs.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        told_to_stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    stopping = asyncio.create_task(told_to_stop.wait(), name=f"{role}-signals")
    starting = asyncio.create_task(server.start(), name=f"{role}-start")
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _say_ready(role, server)
        else:
            starting.cancel()
            await asyncio.wait((starting,))
        await stopping
    finally:
        stopping.cancel()
        await server.stop()
    log.info("stopped role=%s", role)


def _say_ready(role: str, server: Server) -> None:
    warn_of_slow_checksums(log)
    if server.metrics_address:
        log.info("ready role=%s address=%s metrics=%s", role, server.address, server.metrics_address)
    else:
        log.info("ready role=%s address=%s", role, server.address)
    sys.stdout.write(f"ready {role} {server.address}\n")
    sys.stdout.flush()


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
