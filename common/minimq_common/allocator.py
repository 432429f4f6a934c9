"""Keeping memory that is freed for what comes next, in processes through which large frames pass."""

#: What is added to a block counts as well, and glibc does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns large blocks at once, and the next one comes page by page, each of them cleared first: for frames of
    1 MiB that costs more than all that is done with them. It takes for large what is larger than the largest block that
    was freed so far, so one is freed here, which was never touched. Other allocators, and a glibc that is configured by
    its environment, stay as they are.
    """
    bytes(_BLOCK_BYTES)
