"""Runs a module as `python -m` does, in a process that ends when its parent does, however the parent ends.

    python -m minimq.local.ends_with_parent PARENT_PID MODULE ARGUMENT...

A parent that is killed cannot end its children, so each child looks after this itself: a thread waits for the parent's
exit on a pidfd. The other ways have holes. The kernel's parent-death signal also fires when only the *thread* that
started the child ends, and must be set between fork and exec, where Python code is not safe in a program with threads;
and the pipe whose end is closed with the parent stays open as long as any forked copy of the parent lives.

A child that is stopped at that moment (SIGSTOP) is let go and ended by the kernel, provided that it has a process group
of its own in the parent's session: a group that loses its last tie to the session while it is stopped gets SIGHUP and
SIGCONT.
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

#: Time that the module gets for a clean end.
_GRACE_S = 5.0
#: Time between two looks at the parent where there is no pidfd.
_LOOK_AGAIN_S = 0.5


def _wait_for_end(parent: int) -> None:
    try:
        pidfd = os.pidfd_open(parent)
    except (AttributeError, OSError):  # not Linux, or not allowed, or it is gone already
        while os.getppid() == parent:
            time.sleep(_LOOK_AGAIN_S)
        return
    # The number may have gone to another process before it was opened: then this one's parent is not it any more.
    if os.getppid() == parent:
        select.select([pidfd], [], [])


def _end_with(parent: int) -> None:
    _wait_for_end(parent)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(_GRACE_S)
    os.kill(os.getpid(), signal.SIGKILL)


def main() -> None:
    """Watch the parent and run the module."""
    _, parent, module, *arguments = sys.argv
    threading.Thread(target=_end_with, args=(int(parent),), name="ends-with-parent", daemon=True).start()
    # Nothing of what is imported becomes garbage; to look for it would be a fifth of the start. A server turns it on.
    gc.disable()
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
