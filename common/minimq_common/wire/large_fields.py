"""Encoding messages around large bytes, with one copy of these.

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
