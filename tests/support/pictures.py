"""Pictures that examples draw."""

from __future__ import annotations

import struct


def check_picture(data: bytes) -> None:
    """Verify that it is a PNG of the size that the examples draw, with something on it."""
    signature, _, header, width, height = struct.unpack_from(">8sI4sII", data)
    assert (signature, header) == (b"\x89PNG\r\n\x1a\n", b"IHDR")
    assert (width, height) == (1200, 675)
    assert 20_000 < len(data) < 500_000  # an empty picture of this size has 5,000
