"""Encodes handles as text, with a checksum so that a truncated handle is detected."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import TypeVar

import google_crc32c
import msgspec

_CHECKSUM = struct.Struct("<I")
_MAX_TEXT = 2_048

Parts = TypeVar("Parts", bound=msgspec.Struct)


def to_text(parts: msgspec.Struct) -> str:
    """Encode values as URL-safe text. It begins with a letter, so no command takes it for an option."""
    data = msgspec.msgpack.encode(parts)
    return base64.urlsafe_b64encode(data + _CHECKSUM.pack(google_crc32c.value(data))).decode().rstrip("=")


def from_text(text: str, kind: type[Parts]) -> Parts:
    """Decode a text of `to_text`. Raises `ValueError` for any other."""
    try:
        if len(text) > _MAX_TEXT:
            raise ValueError(f"it has {len(text)} characters")
        raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
        data, [checksum] = raw[: -_CHECKSUM.size], _CHECKSUM.unpack(raw[-_CHECKSUM.size :])
        if google_crc32c.value(data) != checksum:
            raise ValueError("its checksum is wrong")
        return msgspec.msgpack.decode(data, type=kind)
    except (TypeError, binascii.Error, struct.error, msgspec.MsgspecError) as error:
        raise ValueError(str(error)) from None
