"""Settings of the memory allocator: freed memory is kept where large frames pass, returned where they are rare."""

from __future__ import annotations

import contextlib
import ctypes
import os

#: What is added to a block counts as well, and glibc does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20

#: Numbers of options of glibc's mallopt, from malloc.h.
_M_MMAP_THRESHOLD, _M_ARENA_MAX = -3, -8
#: Blocks from that size on are returned at once, and threads share so many places for smaller ones.
_RETURNED_BYTES, _ARENAS = 128 << 10, 2


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns large blocks at once, and the next one comes page by page, each of them cleared first: for frames of
    1 MiB that costs more than all that is done with them. It takes for large what is larger than the largest block that
    was freed so far, so one is freed here, which was never touched. Other allocators, and a glibc that is configured by
    its environment, stay as they are.
    """
    bytes(_BLOCK_BYTES)


def share_freed_memory() -> None:
    """Let the threads of this process use what others have freed, for one in which many threads take large blocks.

    Each thread of gRPC has a heap of its own otherwise, up to eight for each processor, and what one of them has freed
    is of no use to the others: of a flood that was held to 160 MiB 500 stay. Other allocators, and a glibc that is
    configured by its environment, stay as they are.
    """
    _configure((_M_ARENA_MAX, _ARENAS))


def return_freed_memory() -> None:
    """Have this process return freed memory to the system, for one that has little and takes large blocks rarely.

    glibc keeps freed blocks for what comes next, in places of each thread, up to the largest that was freed so far: of
    a flood of large requests a gigabyte stays. Other allocators, and a glibc that is configured by its environment,
    stay as they are.
    """
    _configure((_M_MMAP_THRESHOLD, _RETURNED_BYTES), (_M_ARENA_MAX, _ARENAS))


class _Arenas(ctypes.Structure):
    """`struct mallinfo2` of glibc, over all arenas."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            "arena",
            "ordblks",
            "smblks",
            "hblks",
            "hblkhd",
            "usmblks",
            "fsmblks",
            "uordblks",
            "fordblks",
            "keepcost",
        )
    )


def freed_bytes() -> int:
    """Return the freed memory that this process has kept so far; 0 where the allocator does not tell."""
    try:
        look = ctypes.PyDLL(None).mallinfo2  # it takes no time, which letting go of the interpreter would
    except AttributeError:
        return 0
    look.restype = _Arenas
    return int(look().fordblks)


def give_back() -> None:
    """Return freed memory to the system, all of it that is in whole pages, where the allocator can."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def _configure(*options: tuple[int, int]) -> None:
    if any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return
    with contextlib.suppress(AttributeError, OSError):
        configure = ctypes.CDLL(None).mallopt
        for option in options:
            configure(*option)
