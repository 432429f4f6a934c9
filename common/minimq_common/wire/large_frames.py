"""Large frames: messages around large bytes are encoded with one copy of these, and freed memory is kept.

protobuf encodes from the end, into a buffer that it moves whenever that is too small: a message of 1 MiB takes it a
millisecond and more. What stands around the bytes is encoded by protobuf, and joined with them.
"""

from __future__ import annotations

#: With this many bytes and more it pays to join them.
LARGE_BYTES = 16 << 10
_LENGTH_DELIMITED = 2


def field_head(number: int, size: int) -> bytes:
    """Return what stands ahead of the content of a field that holds bytes, or a message."""
    head = bytearray()
    for value in (number << 3 | _LENGTH_DELIMITED, size):
        rest = value
        while rest > 0x7F:
            head.append(rest & 0x7F | 0x80)
            rest >>= 7
        head.append(rest)
    return bytes(head)


#: glibc adds to a block what it needs itself, and does not learn from more than 32 MiB.
_BLOCK_BYTES = 31 << 20


def keep_freed_memory() -> None:
    """Let this process use freed memory again, up to about 62 MiB of it, instead of returning it to the system.

    glibc returns blocks that are larger than the largest one freed so far, and the next one comes page by page, each of
    them cleared first: for frames of 1 MiB that costs more than all that is done with them. So one is freed here.
    """
    bytes(_BLOCK_BYTES)
