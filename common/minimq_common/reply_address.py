"""Inboxes, and the address for the reply that a request carries. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

from minimq_common.names import is_broker
from minimq_common.protocol_bounds import DAY_MS, INBOX_BYTES, MAX_CORRELATION_ID

#: Bytes of the shortest key of an inbox. Nobody guesses one.
MIN_KEY_BYTES = 16
#: The property by which a message is a request; see `ReplyTo`.
REPLY_TO = "REPLY_TO"
#: Longest time for which a request waits for its reply, in ms.
MAX_WAIT_MS = DAY_MS
#: Characters of the longest value of that property that is looked at, and digits of the time in it.
_MOST = 512
_MOST_DIGITS = 9
_INBOX = re.compile(rf"[0-9a-f]{{{2 * INBOX_BYTES}}}\Z")
_CORRELATION_ID = re.compile(rf"[0-9a-zA-Z_-]{{1,{MAX_CORRELATION_ID}}}\Z")


def inbox_of(key: bytes) -> bytes:
    """Return the address of the inbox that a key opens. Nobody can tell the key from it."""
    import hashlib  # noqa: PLC0415 - those who ask for nothing do without it

    return hashlib.sha256(key).digest()[:INBOX_BYTES]


class ReplyTo(NamedTuple):
    """Where a request is answered, as its property `REPLY_TO` says: "broker/inbox/correlation id/ms".

    Attributes:
        broker_name: the broker at which the requester attends.
        inbox: address of its inbox there.
        correlation_id: of the request; as hard to guess as the address, so that nobody answers requests of others.
        wait_ms: how long the requester waits, from when it has made the message.
    """

    broker_name: str
    inbox: bytes
    correlation_id: str
    wait_ms: int

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.inbox.hex()}/{self.correlation_id}/{self.wait_ms}"


def reply_to(value: str) -> ReplyTo | None:
    """Return where a request is answered; None if the property has none of our values: anybody may set it."""
    parts = value.split("/") if len(value) <= _MOST else []
    if len(parts) != 4:
        return None
    broker_name, inbox, correlation_id, wait_ms = parts
    if not (is_broker(broker_name) and _INBOX.match(inbox) and _CORRELATION_ID.match(correlation_id)):
        return None
    if not (wait_ms.isascii() and wait_ms.isdecimal() and len(wait_ms) <= _MOST_DIGITS):
        return None
    return ReplyTo(broker_name, bytes.fromhex(inbox), correlation_id, min(int(wait_ms), MAX_WAIT_MS))
