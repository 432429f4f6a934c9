"""Settings of the allocator of glibc, for processes where large frames pass."""

from __future__ import annotations

import contextlib
import ctypes

#: glibc adds to a block what it needs itself, and does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20
#: From glibc's malloc.h.
_M_ARENA_MAX = -8


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns blocks that are larger than the largest one freed so far, and the next one comes page by page, each of
    them cleared first: for frames of 1 MiB that costs more than all that is done with them. So one is freed here.
    """
    bytes(_BLOCK_BYTES)


def use_two_heaps() -> None:
    """Limit glibc to two heaps. By default each thread of gRPC gets one, and a flood of large requests fills all."""
    with contextlib.suppress(AttributeError, OSError):  # another allocator, or system
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)
