"""The process in which a client was created, and whether clients can work in it."""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

from minimq.connection.client_log import client_logger
from minimq_common.errors import Closed, UsageError

log = client_logger(__name__)

#: True from the moment on at which daemon threads stop, at the end of the process.
is_finalizing = sys.is_finalizing
#: Cached: a system call for each message would cost a tenth of a send.
_pid = os.getpid()
_main_thread = threading.main_thread().ident
#: Folder of the client package.
_PACKAGE = __file__.rpartition("transport")[0]
#: Open connections of this process.
_open: set[object] = set()
#: Ids of the threads of their event loops. A blocking call there would wait for itself.
loop_threads: set[int] = set()
#: True if gRPC will not work in a child that is forked now.
_breaks_children = False
#: Id of the parent or ancestor process that used gRPC when it forked; 0 if none did.
_breaking_parent = 0
_told = False
#: Linux names of the threads of gRPC: two or more of them run as long as it is in use, and some while it ends.
_GRPC_THREADS = {"grpc_global_tim", "grpc_shutdown", "event_engine", "lifeguard"}
#: Time in which these threads end after the last connection was closed; on a busy machine they take 0.04 s.
_GRPC_THREADS_LINGER_S = 1.0
_closed_at = -_GRPC_THREADS_LINGER_S
#: Modules with which clients block. If they are patched, a blocking client stops the whole process.
_BLOCKING_MODULES = ("_thread", "queue", "select", "selectors", "socket", "thread", "threading")


def _before_fork() -> None:
    global _breaks_children  # noqa: PLW0603 - there is one process
    _breaks_children = bool(_open) or _others_use_grpc()


def _others_use_grpc() -> bool:
    if "grpc" not in sys.modules or os.environ.get("GRPC_ENABLE_FORK_SUPPORT") != "0":
        return False
    while _has_grpc_thread():
        if time.monotonic() > _closed_at + _GRPC_THREADS_LINGER_S:
            return True
        time.sleep(0.001)
    return False


def _has_grpc_thread() -> bool:
    from pathlib import Path  # most processes never fork

    for name in Path("/proc/self/task").glob("*/comm"):
        with suppress(OSError):  # the thread has just ended
            if name.read_text().strip() in _GRPC_THREADS:
                return True
    return False


def _after_fork_in_parent() -> None:
    global _told  # noqa: PLW0603 - there is one process
    if _breaks_children and not _open and not _told:
        _told = True
        log.warning(
            "client: another library uses gRPC in this process, which has forked: gRPC does not work in the child, and "
            "calls there break those here. If the child uses gRPC, set GRPC_ENABLE_FORK_SUPPORT=1 in the environment "
            "(docs/processes.md)"
        )


def _after_fork_in_child() -> None:
    global _pid, _main_thread, _breaking_parent  # noqa: PLW0603 - there is one process
    if _breaks_children or _open:  # a fork in C code calls only this hook, not `_before_fork`
        _breaking_parent = _pid
    _open.clear()
    loop_threads.clear()
    _pid, _main_thread = os.getpid(), threading.get_ident()
    for home in [*_homes]:
        home.is_forked = True


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def connection_opened(connection: object) -> None:
    """Register a connection before it uses gRPC. On the thread of its event loop."""
    _open.add(connection)
    loop_threads.add(threading.get_ident())


def connection_closed(connection: object) -> None:
    """Remove a connection once all of its gRPC objects are closed. On the thread of its event loop."""
    global _closed_at  # noqa: PLW0603 - there is one process
    _closed_at = time.monotonic()
    _open.discard(connection)
    loop_threads.discard(threading.get_ident())


_homes: weakref.WeakSet[HomeProcess] = weakref.WeakSet()


class HomeProcess:
    """The process that created a client. Neither gRPC nor the client's threads survive a fork of it."""

    def __init__(self) -> None:
        if _breaking_parent:
            raise UsageError(
                f"no client works in process {_pid}: process {_breaking_parent} had an open client, or used gRPC "
                "otherwise, when it forked, and gRPC does not survive that. Open no client before the fork, close it "
                "before the fork, or start processes with spawn or forkserver; for other libraries, "
                "GRPC_ENABLE_FORK_SUPPORT=1 in the environment helps as well (docs/processes.md)"
            )
        if patch := _monkey_patch():
            raise UsageError(
                f"no client works in this process: {patch} has replaced modules that clients wait with "
                "(threading, socket, select), which would stop the whole process. Use threads or asyncio here, or run "
                "the client in a process of its own without that patch (docs/processes.md)"
            )
        if is_finalizing():
            raise Closed("no client works at the end of the interpreter: its threads would not run")
        self._process = _pid
        #: True in a fork of that process.
        self.is_forked = False
        _homes.add(self)

    @property
    def is_void(self) -> bool:
        """True in a fork, and once the interpreter ends: the threads of clients do not run there."""
        return self.is_forked or is_finalizing()

    def check(self) -> None:
        """Check before a blocking call: raise `Closed` as `check_void`, and `UsageError` as `check_no_signal`."""
        self.check_void()
        check_no_signal()

    def check_void(self) -> None:
        """Raise `Closed` in a fork, and once the interpreter ends."""
        if is_finalizing():
            raise Closed("the interpreter ends, and has stopped the threads of the client: use it before that")
        if self.is_forked:
            raise Closed(
                f"the client was made in process {self._process}, and this is its fork {_pid}: start "
                "processes with spawn or forkserver, or fork before the first client is made (docs/processes.md)"
            )


def check_may_wait() -> None:
    """Raise `UsageError` if a blocking call could wait for the code that it interrupts.

    Such a call is made on the thread of a connection, by a finalizer; or see `check_no_signal`.
    """
    if threading.get_ident() in loop_threads:
        raise UsageError(
            "this is the thread of a client, which a finalizer has interrupted: a call that waits here would wait for "
            "itself. Let `__del__` use no client, or only send_one_way (docs/processes.md)"
        )
    check_no_signal()


def check_no_signal() -> None:
    """Raise `UsageError` in a signal handler that has interrupted a call of a client."""
    if threading.get_ident() != _main_thread:  # only the main thread runs signal handlers
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    called_from = frame
    while frame is not None and not frame.f_code.co_filename.startswith(_PACKAGE):
        frame = frame.f_back
    if frame is not None and _has_handler(called_from, frame):
        raise UsageError(
            "a signal handler must not use a client while the thread that it interrupts does: let it set an event, or "
            "raise an exception as Ctrl-C does (docs/processes.md)"
        )


def _has_handler(inner: FrameType | None, outer: FrameType) -> bool:
    while inner is not None and inner is not outer:
        for value in inner.f_locals.values():
            if value is inner.f_back or (isinstance(value, tuple) and any(each is inner.f_back for each in value)):
                return True
        inner = inner.f_back
    return False


def _monkey_patch() -> str | None:
    is_patched: Callable[[str], bool]
    if (gevent := sys.modules.get("gevent.monkey")) is not None:
        is_patched = gevent.is_module_patched
        if any(map(is_patched, _BLOCKING_MODULES)):
            return "gevent.monkey"
    if (eventlet := sys.modules.get("eventlet.patcher")) is not None:
        is_patched = eventlet.is_monkey_patched
        if any(map(is_patched, _BLOCKING_MODULES)):
            return "eventlet.monkey_patch"
    return None
