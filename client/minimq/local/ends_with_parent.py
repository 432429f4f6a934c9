"""Runs a module like `python -m`, in a process that ends when its parent does, however the parent ends.

    python -m minimq.local.ends_with_parent PARENT_PID MODULE ARGUMENT...

A killed parent cannot end its children, so each child watches its parent: a thread waits for the parent's exit on a
pidfd. The alternatives have holes. The kernel's parent-death signal also fires when only the *thread* that started the
child ends, and must be set between fork and exec, where Python code is not safe in a program with threads. A pipe that
closes with the parent stays open as long as any forked copy of the parent lives.

If the child is stopped (SIGSTOP) when the parent ends, the kernel resumes and ends it, provided that it has a process
group of its own in the parent's session: a stopped process group that becomes orphaned gets SIGHUP and SIGCONT.
"""

from __future__ import annotations

import gc
import os
import runpy
import select
import signal
import sys
import threading
import time

#: Time for a clean end, between SIGTERM and SIGKILL.
_GRACE_S = 5.0
#: Poll interval where there is no pidfd.
_LOOK_AGAIN_S = 0.5


def _wait_for_end(parent: int) -> None:
    try:
        pidfd = os.pidfd_open(parent)
    except (AttributeError, OSError):  # not Linux, or not allowed, or it is gone already
        while os.getppid() == parent:
            time.sleep(_LOOK_AGAIN_S)
        return
    # Otherwise the parent ended before pidfd_open, and its pid may belong to another process.
    if os.getppid() == parent:
        select.select([pidfd], [], [])


def _end_with(parent: int) -> None:
    _wait_for_end(parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    _, parent, module, *arguments = sys.argv
    threading.Thread(target=_end_with, args=(int(parent),), name="ends-with-parent", daemon=True).start()
    # Imports make no garbage, and collecting would take a fifth of the start-up time. The server enables gc later.
    gc.disable()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
