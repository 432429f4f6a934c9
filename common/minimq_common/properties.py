"""Properties that minimq interprets: trace context, reply address, message group. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

import google_crc32c

from minimq_common.errors import InvalidArgument
from minimq_common.names import MAX_BROKER
from minimq_common.text_units import kind_of
from minimq_common.wire.protocol_bounds import DAY_MS, INBOX_BYTES, MAX_CORRELATION_ID

#: Names from W3C Trace Context.
TRACEPARENT = "traceparent"
TRACESTATE = "tracestate"
#: Length of a traceparent of version 00, the only version.
PARENT_CHARACTERS = 55

#: Odd hexadecimal digits: the lowest flag means that the trace is recorded.
_RECORDED = "13579bdf"
_PARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")


def recorded_parent(properties: Mapping[str, object]) -> str:
    """Return the `traceparent` of a message if its trace is recorded; empty otherwise.

    Called for each batch that is sent, so it checks only roughly; the broker parses the value.
    """
    parent = properties.get(TRACEPARENT)
    if isinstance(parent, str) and len(parent) == PARENT_CHARACTERS and parent.isascii() and parent[-1] in _RECORDED:
        return parent
    return ""


def parsed_parent(text: str) -> tuple[int, int, int] | None:
    """Return trace id, span id and flags; None if the text is not a valid `traceparent`."""
    found = _PARENT.fullmatch(text)
    if found is None:
        return None
    trace_id, span_id, flags = (int(number, 16) for number in found.groups())
    return (trace_id, span_id, flags) if trace_id and span_id else None


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
