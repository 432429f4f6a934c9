"""Keeping freed memory where large frames pass, once for all threads."""

from __future__ import annotations

import contextlib
import ctypes
import os

#: glibc adds to a block what it needs itself, and does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20
#: The number of an option of glibc's mallopt, from malloc.h.
_M_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns blocks that are larger than the largest one freed so far, and the next one comes page by page, each of
    them cleared first: for frames of 1 MiB that costs more than all that is done with them. So one is freed here.
    """
    bytes(_BLOCK_BYTES)


def share_freed_memory() -> None:
    """Let the threads of a server use what others have freed, unless its environment configures glibc.

    Each thread of gRPC has a heap of its own otherwise: a flood that is held to 600 MiB takes three times that.
    """
    if not any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        with contextlib.suppress(AttributeError, OSError):  # another allocator
            ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
