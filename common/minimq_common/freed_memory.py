"""Freed memory, which servers return when they have too much of it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

#: The number of an option of glibc's mallopt, from malloc.h.
_M_ARENA_MAX = -8
#: A server with more memory than that, which only a flood needs, returns what is freed.
_MUCH_PAGES = (320 << 20) // os.sysconf("SC_PAGE_SIZE")
_CHECK_INTERVAL_S = 0.25
#: Other threads wait for that, so they get so many times as long in between.
_REST = 3


def bound_freed_memory() -> None:
    """Have the threads of a server share freed memory, and return it once there is much, where glibc is the allocator.

    Each thread of gRPC has a heap of its own otherwise, and of a flood of large requests gigabytes stay.
    """
    with contextlib.suppress(AttributeError, OSError):  # another allocator, or system
        glibc = ctypes.CDLL(None)
        glibc.mallopt(_M_ARENA_MAX, 2)
        threading.Thread(target=_return_freed, args=(glibc.malloc_trim,), name="freed-memory", daemon=True).start()


def _return_freed(trim: Callable[[int], object]) -> None:
    statm = Path("/proc/self/statm")
    took_s = 0.0
    while statm.exists():
        time.sleep(max(_CHECK_INTERVAL_S, _REST * took_s))
        fields = statm.read_bytes().split()
        began = time.monotonic()
        if int(fields[1]) - int(fields[2]) > _MUCH_PAGES:  # without the pages of files
            trim(0)
        took_s = time.monotonic() - began
