"""Keeping freed memory where large frames pass."""

from __future__ import annotations

#: glibc adds to a block what it needs itself, and does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns blocks that are larger than the largest one freed so far, and the next one comes page by page, each of
    them cleared first: for frames of 1 MiB that costs more than all that is done with them. So one is freed here.
    """
    bytes(_BLOCK_BYTES)
