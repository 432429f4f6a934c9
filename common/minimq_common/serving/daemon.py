"""Running a server as a process: its event loop, logging, the ready line, signals and the exit status."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import importlib.metadata
import logging
import signal
import socket
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, Protocol, TypeVarTuple, Unpack

from minimq_common.batch.header import warn_of_slow_checksums
from minimq_common.errors import MinimqError
from minimq_common.serving.logs import LogFormat, RateLimitedHandler, formatter
from minimq_common.serving.open_files import open_more_files
from minimq_common.serving.periodic import until_first_ends

if TYPE_CHECKING:
    from _typeshed import FileDescriptorLike

LogLevel = Literal["debug", "info", "warning", "error"]

log = logging.getLogger(__name__)


class Server(Protocol):
    """The methods of a server that `run` calls, all on one event loop."""

    @property
    def address(self) -> str:
        """HOST:PORT of the server, after `start`."""

    @property
    def metrics_address(self) -> str:
        """HOST:PORT of its metrics, after `start`; empty if it serves none."""

    async def start(self) -> None:
        """Start to serve requests. Raises `MinimqError` if that is not possible."""

    async def failure(self) -> None:
        """Wait until it may not serve any more, and raise the reason. Called after `start`."""

    async def stop(self) -> None:
        """Stop everything that `start` has started, even if that was interrupted. Idempotent."""


def version() -> str:
    """Return the version of the installed package; "(not installed)" in a checkout."""
    try:
        return importlib.metadata.version("minimq")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


def set_up_logging(level: LogLevel, log_format: LogFormat = "text") -> None:
    """Log to stderr, from `level` upwards."""
    handler = RateLimitedHandler()
    handler.setFormatter(formatter(log_format))
    logging.basicConfig(handlers=[handler], level=level.upper(), force=True)
    logging.captureWarnings(capture=True)
    sys.unraisablehook = lambda failed: _log_failure(failed.err_msg or "Exception ignored in", failed.exc_value)
    threading.excepthook = lambda failed: _log_failure("a thread has ended by an error", failed.exc_value)


def _log_failure(what: str, error: BaseException | None) -> None:
    # Python itself would write it to stderr, whatever the format and the limits of the log are.
    log.error("%s", what, exc_info=error)


def run(role: str, server: Server, *, log_level: LogLevel, log_format: LogFormat = "text") -> None:
    """Serve until SIGTERM or SIGINT, then stop the server and return."""
    set_up_logging(log_level, log_format)
    open_more_files()
    gc.freeze()  # imported modules stay, so the collector need not visit them
    gc.enable()
    try:
        with asyncio.Runner(loop_factory=ServerLoop) as runner:
            runner.run(_serve(role, server))
    except MinimqError as error:
        if log_format == "json":
            log.critical("failed error=%s", error)
        else:
            sys.stderr.write(f"error: {error}\n")
        sys.exit(1)


async def _serve(role: str, server: Server) -> None:
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()

    def on_signal(number: signal.Signals) -> None:
        log.info("stopping signal=%s", number.name)
        # The default action for the next signal needs no event loop, so it also ends a process whose loop hangs.
        loop.remove_signal_handler(number)
        signal.signal(number, signal.SIG_DFL)
        stop_requested.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, on_signal, number)

    stopping = asyncio.create_task(stop_requested.wait(), name=f"{role}-signals")
    starting = asyncio.create_task(server.start(), name=f"{role}-start")
    try:
        await asyncio.wait((starting, stopping), return_when=asyncio.FIRST_COMPLETED)
        if starting.done():
            starting.result()
            _say_ready(role, server)
            await until_first_ends({f"{role}-failure": server.failure(), f"{role}-stop": stop_requested.wait()})
        else:
            starting.cancel()
            await asyncio.wait((starting,))
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

#: More than the socket can contain: its buffer has room for some hundred writes.
_MAX = 1 << 14


class ServerLoop(asyncio.SelectorEventLoop):
    """An event loop that prevents gRPC's wake-up socket from filling up under load.

    A thread of gRPC puts each event into a queue, and wakes the loop with one byte in a socket. In one iteration, gRPC
    handles all queued events but reads only one byte. So under load the bytes accumulate until the socket is full. Then
    the thread blocks until three quarters of it are empty, which takes about 200 iterations, and all calls wait. This
    loop drains the socket except for the last byte, which gRPC reads.

    gRPC must use only one such loop per process: two would drain each other's bytes.
    """

    def add_reader(self, fd: FileDescriptorLike, callback: Callable[[Unpack[Ts]], object], *args: *Ts) -> None:
        """Same as in the base class, but drain gRPC's wake-up socket, a Unix socket, before each callback."""
        if isinstance(fd, socket.socket) and fd.family == socket.AF_UNIX:
            super().add_reader(fd, functools.partial(_take_all, fd, functools.partial(callback, *args)))
        else:
            super().add_reader(fd, callback, *args)


def _take_all(wakeups: socket.socket, callback: Callable[[], object]) -> None:
    # Drains before the callback: the events of all bytes that have arrived are then already in the queue.
    with contextlib.suppress(BlockingIOError):
        extra = len(wakeups.recv(_MAX, socket.MSG_PEEK)) - 1
        if extra > 0:
            wakeups.recv(extra)
    callback()
