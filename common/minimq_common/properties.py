"""Properties that minimq interprets: reply address, message group. Pure."""

from __future__ import annotations

import re
from typing import NamedTuple

import google_crc32c

from minimq_common.errors import InvalidArgument
from minimq_common.names import MAX_BROKER
from minimq_common.text_units import kind_of
from minimq_common.wire.protocol_bounds import DAY_MS, INBOX_BYTES, MAX_CORRELATION_ID

#: Minimum length of the key of an inbox; it must not be guessable.
MIN_KEY_BYTES = 16
#: A message with this property is a request; see `ReplyTo`.
REPLY_TO = "REPLY_TO"
#: Maximum time for which a request waits for its reply.
MAX_WAIT_MS = DAY_MS
#: The format of `ReplyTo`. The characters of broker names are those of `names.py`.
_VALUE = re.compile(
    rf"([a-zA-Z0-9_.@-]{{1,{MAX_BROKER}}})/([0-9a-f]{{{2 * INBOX_BYTES}}})"
    rf"/([0-9a-zA-Z_-]{{1,{MAX_CORRELATION_ID}}})/([0-9]{{1,9}})\Z"
)


def inbox_of(key: bytes) -> bytes:
    """Return the address of the inbox that a key opens. The key cannot be derived from it."""
    import hashlib  # imported here because only requests need it

    return hashlib.sha256(key).digest()[:INBOX_BYTES]


class ReplyTo(NamedTuple):
    """The value of the property `REPLY_TO` of a request: "broker/inbox/correlation id/ms"."""

    broker_name: str
    inbox: bytes
    correlation_id: str
    wait_ms: int

    def __str__(self) -> str:
        return f"{self.broker_name}/{self.inbox.hex()}/{self.correlation_id}/{self.wait_ms}"


def reply_to(value: str) -> ReplyTo | None:
    """Parse the property `REPLY_TO`; None if it is not in our format, since applications may set it, too."""
    found = _VALUE.match(value)
    if found is None:
        return None
    broker_name, inbox, correlation_id, wait_ms = found.groups()
    return ReplyTo(broker_name, bytes.fromhex(inbox), correlation_id, min(int(wait_ms), MAX_WAIT_MS))


#: Carries the name of the message group; the batch header only has its hash.
MESSAGE_GROUP = "MESSAGE_GROUP"
MAX_MESSAGE_GROUP = 64


def check_message_group(name: str) -> str:
    """Return the name. Raises `InvalidArgument` if it is not a valid message group."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the message group is {kind_of(name)}: give text")
    if not 0 < len(name) <= MAX_MESSAGE_GROUP:
        raise InvalidArgument(f"the message group has {len(name)} characters: it must have 1 to {MAX_MESSAGE_GROUP}")
    if not name.isprintable():
        raise InvalidArgument(f"the message group {name!r} has characters that cannot be printed: leave them out")
    return name


def group_hash_of(name: str) -> int:
    """Return the 32-bit hash by which brokers distinguish message groups; never 0."""
    return int(google_crc32c.value(name.encode())) or 1
