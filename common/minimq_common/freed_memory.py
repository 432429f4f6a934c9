"""Returns freed memory of servers to the system."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: From glibc's malloc.h.
_M_ARENA_MAX = -8
#: Trim above 320 MiB of anonymous memory, which only a flood needs.
_TRIM_PAGES = (320 << 20) // os.sysconf("SC_PAGE_SIZE")
_CHECK_INTERVAL_S = 0.25
#: Trimming blocks other threads: pause three times as long as the last trim took.
_PAUSE_FACTOR = 3


def bound_freed_memory() -> None:
    """Limit glibc to two heaps, and trim them in the background.

    By default each thread of gRPC gets a heap, and gigabytes stay allocated after a flood of large requests.
    """
    with contextlib.suppress(AttributeError, OSError):  # another allocator, or system
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_M_ARENA_MAX, 2)
        threading.Thread(target=_return_freed, args=(glibc.malloc_trim,), name="freed-memory", daemon=True).start()


def _return_freed(trim: Callable[[int], object]) -> None:
    statm = Path("/proc/self/statm")
    took_s = 0.0
    while statm.exists():
        time.sleep(max(_CHECK_INTERVAL_S, _PAUSE_FACTOR * took_s))
        fields = statm.read_bytes().split()
        began = time.monotonic()
        if int(fields[1]) - int(fields[2]) > _TRIM_PAGES:  # without the pages of files
            trim(0)
        took_s = time.monotonic() - began
