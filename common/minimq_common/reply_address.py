"""Inboxes, and the address for the reply that a request carries. Pure."""

from __future__ import annotations

import hashlib

from minimq_common.protocol_bounds import INBOX_BYTES

#: Bytes of the shortest key of an inbox. Nobody guesses one.
MIN_KEY_BYTES = 16


def inbox_of(key: bytes) -> bytes:
    """Return the address of the inbox that a key opens. Nobody can tell the key from it."""
    return hashlib.sha256(key).digest()[:INBOX_BYTES]
