"""Inboxes, and the address for the reply that a request carries. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from minimq_common.names import MAX_BROKER
from minimq_common.wire.protocol_bounds import DAY_MS, INBOX_BYTES, MAX_CORRELATION_ID

#: Bytes of the shortest key of an inbox. Nobody guesses one.
MIN_KEY_BYTES = 16
#: The property by which a message is a request; see `ReplyTo`.
REPLY_TO = "REPLY_TO"
#: Longest time for which a request waits for its reply, in ms.
MAX_WAIT_MS = DAY_MS
#: What the property looks like; the letters of broker names are those of `names`.
_VALUE = re.compile(
    rf"([a-zA-Z0-9_.@-]{{1,{MAX_BROKER}}})/([0-9a-f]{{{2 * INBOX_BYTES}}})"
    rf"/([0-9a-zA-Z_-]{{1,{MAX_CORRELATION_ID}}})/([0-9]{{1,9}})\Z"
)


def inbox_of(key: bytes) -> bytes:
    """Return the address of the inbox that a key opens. Nobody can tell the key from it."""
    import hashlib  # those who ask for nothing do without it

    return hashlib.sha256(key).digest()[:INBOX_BYTES]


class ReplyTo(NamedTuple):
    """Where a request is answered, as its property `REPLY_TO` says: "broker/inbox/correlation id/ms"."""

    broker_name: str
    inbox: bytes
    correlation_id: str
    wait_ms: int

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.inbox.hex()}/{self.correlation_id}/{self.wait_ms}"


def reply_to(value: str) -> ReplyTo | None:
    """Return where a request is answered; None if the property has none of our values: anybody may set it."""
    found = _VALUE.match(value)
    if found is None:
        return None
    broker_name, inbox, correlation_id, wait_ms = found.groups()
    return ReplyTo(broker_name, bytes.fromhex(inbox), correlation_id, min(int(wait_ms), MAX_WAIT_MS))
