"""The price of memory on this machine: what a process waits for a page that it has not had yet."""

from __future__ import annotations

import mmap
import os
import time

#: Memory that is touched before something is measured: as much as the clients of the largest attack take.
_WARM_BYTES = 4 << 30
#: But no more than such a part of what this machine has left.
_WARM_SHARE = 0.4
_CHUNK_BYTES = 256 << 20
_PAGE_BYTES = mmap.PAGESIZE


def warm_memory() -> float:
    """Take memory, touch it and free it again; return what a page costs from then on, in microseconds.

    A virtual machine gives memory that was free for a while back to its host. A page of that costs ten times as much as
    one that was used a moment ago, and a flood that takes gigabytes is then about nothing else.
    """
    left = os.sysconf("SC_AVPHYS_PAGES") * _PAGE_BYTES
    taken = []
    for _ in range(int(min(_WARM_BYTES, left * _WARM_SHARE) // _CHUNK_BYTES)):
        taken.append(_touched())
    for memory in taken:
        memory.close()
    began = time.perf_counter()
    _touched().close()
    return (time.perf_counter() - began) * 1e6 / (_CHUNK_BYTES // _PAGE_BYTES)


def _touched() -> mmap.mmap:
    memory = mmap.mmap(-1, _CHUNK_BYTES, mmap.MAP_PRIVATE)
    memory[::_PAGE_BYTES] = b"x" * (_CHUNK_BYTES // _PAGE_BYTES)
    return memory
