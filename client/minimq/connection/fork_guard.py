"""Where clients cannot work: in a fork of their process, under a monkey patch, on the event loop of a client."""

from __future__ import annotations

import os
import sys
import threading
import time

from minimq_common.errors import Closed, UsageError

#: True from the moment on at which daemon threads stop, at the end of the process.
is_finalizing = sys.is_finalizing
#: Ids of the threads of the event loops of clients. A blocking call there would wait for itself.
loop_threads: set[int] = set()
#: Cached: a system call for each message would cost a tenth of a send.
process_id = os.getpid()
#: Id of the parent or ancestor process that had an open client when it forked; 0 if none did.
_breaking_parent = 0
#: The threads of gRPC end up to 0.04 s after its last connection, and cannot be joined. A fork breaks gRPC until then.
_GRPC_ENDS_S = 0.5
_closed_at = 0.0
#: Modules with which clients block. If they are patched, a blocking client stops the whole process.
_BLOCKING_MODULES = ("_thread", "queue", "select", "selectors", "socket", "thread", "threading")
_PATCHERS = (("gevent.monkey", "is_module_patched"), ("eventlet.patcher", "is_monkey_patched"))


def _before_fork() -> None:
    if _closed_at and not loop_threads:
        time.sleep(max(_closed_at + _GRPC_ENDS_S - time.monotonic(), 0.0))


def _after_fork_in_child() -> None:
    global process_id, _breaking_parent  # noqa: PLW0603 - there is one process
    if loop_threads:
        _breaking_parent = process_id
    loop_threads.clear()
    process_id = os.getpid()


os.register_at_fork(before=_before_fork, after_in_child=_after_fork_in_child)


def loop_opened() -> None:
    """Register the running thread as the event loop of a client, before that uses gRPC."""
    loop_threads.add(threading.get_ident())


def loop_closed() -> None:
    """Remove the running thread, once all gRPC objects of its client are closed."""
    global _closed_at  # noqa: PLW0603 - there is one process
    _closed_at = time.monotonic()
    loop_threads.discard(threading.get_ident())


class ForkGuard:
    """The process that created a client. Neither gRPC nor the client's threads survive a fork of it."""

    def __init__(self) -> None:
        if _breaking_parent:
            raise UsageError(
                f"no client works in process {process_id}: process {_breaking_parent} had an open client when it "
                "forked, and gRPC does not survive that. Open clients after the fork, close them before it, or start "
                "processes with spawn or forkserver (docs/processes.md)"
            )
        if patch := _monkey_patch():
            raise UsageError(
                f"no client works in this process: {patch} has replaced modules that clients wait with "
                "(threading, socket, select), which would stop the whole process. Use threads or asyncio here, or run "
                "the client in a process of its own without that patch (docs/processes.md)"
            )
        if is_finalizing():
            raise Closed("no client works at the end of the interpreter: its threads would not run")
        self.made_in = process_id

    @property
    def is_void(self) -> bool:
        """True in a fork, and once the interpreter ends: the threads of clients do not run there."""
        return self.made_in != process_id or is_finalizing()

    def check(self) -> None:
        """Raise `Closed` in a fork, and once the interpreter ends."""
        if is_finalizing():
            raise Closed("the interpreter ends, and has stopped the threads of the client: use it before that")
        if self.made_in != process_id:
            raise Closed(
                f"the client was made in process {self.made_in}, and this is its fork {process_id}: start "
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
    for package, is_patched in _PATCHERS:
        patcher = sys.modules.get(package)
        if patcher is not None and any(map(getattr(patcher, is_patched), _BLOCKING_MODULES)):
            return package
    return None
