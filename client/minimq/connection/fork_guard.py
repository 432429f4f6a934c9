"""The process in which a client was created, and whether clients can work in it."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
import weakref
from collections.abc import Callable

from minimq_common.errors import Closed, UsageError

#: True from the moment on at which daemon threads stop, at the end of the process.
is_finalizing = sys.is_finalizing
#: Cached: a system call for each message would cost a tenth of a send.
_pid = os.getpid()
#: Open connections of this process.
_open: set[object] = set()
#: Ids of the threads of their event loops. A blocking call there would wait for itself.
loop_threads: set[int] = set()
#: Id of the parent or ancestor process that had an open connection when it forked; 0 if none did.
_breaking_parent = 0
#: The threads of gRPC end up to 0.04 s after its last connection, and cannot be joined. A fork breaks gRPC until then.
_GRPC_ENDS_S = 0.5
_closed_at = -math.inf
#: Modules with which clients block. If they are patched, a blocking client stops the whole process.
_BLOCKING_MODULES = ("_thread", "queue", "select", "selectors", "socket", "thread", "threading")


def _before_fork() -> None:
    if not _open:
        time.sleep(max(_closed_at + _GRPC_ENDS_S - time.monotonic(), 0.0))


def _after_fork_in_child() -> None:
    global _pid, _breaking_parent  # noqa: PLW0603 - there is one process
    if _open:
        _breaking_parent = _pid
    _open.clear()
    loop_threads.clear()
    _pid = os.getpid()
    for home in [*_homes]:
        home.is_forked = True


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


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


_homes: weakref.WeakSet[ForkGuard] = weakref.WeakSet()


class ForkGuard:
    """The process that created a client. Neither gRPC nor the client's threads survive a fork of it."""

    def __init__(self) -> None:
        if _breaking_parent:
            raise UsageError(
                f"no client works in process {_pid}: process {_breaking_parent} had an open client when it forked, and "
                "gRPC does not survive that. Open clients after the fork, close them before it, or start processes "
                "with spawn or forkserver (docs/processes.md)"
            )
        if patch := _monkey_patch():
            raise UsageError(
                f"no client works in this process: {patch} has replaced modules that clients wait with "
                "(threading, socket, select), which would stop the whole process. Use threads or asyncio here, or run "
                "the client in a process of its own without that patch (docs/processes.md)"
            )
        if is_finalizing():
            raise Closed("no client works at the end of the interpreter: its threads would not run")
        self._made_in = _pid
        #: True in a fork of that process. An attribute, since each send reads it.
        self.is_forked = False
        _homes.add(self)

    @property
    def is_void(self) -> bool:
        """True in a fork, and once the interpreter ends: the threads of clients do not run there."""
        return self.is_forked or is_finalizing()

    def check(self) -> None:
        """Raise `Closed` in a fork, and once the interpreter ends."""
        if is_finalizing():
            raise Closed("the interpreter ends, and has stopped the threads of the client: use it before that")
        if self.is_forked:
            raise Closed(
                f"the client was made in process {self._made_in}, and this is its fork {_pid}: start "
                "processes with spawn or forkserver, or fork before the first client is made (docs/processes.md)"
            )


def check_may_wait() -> None:
    """Raise `UsageError` on the thread of a connection, where a blocking call would wait for itself."""
    if threading.get_ident() in loop_threads:
        raise UsageError(
            "this is the event loop thread of a client, where a blocking call would wait for itself: make it on a "
            "thread of your own. A `__del__` may only call send_one_way and close (docs/processes.md)"
        )


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
