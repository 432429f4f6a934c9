"""Message groups: the names by which messages of a FIFO topic keep their order."""

from __future__ import annotations

import google_crc32c

from minimq_common.errors import InvalidArgument
from minimq_common.words import kind_of

#: The property in which the name travels, as its batch has a hash of it alone.
MESSAGE_GROUP = "MESSAGE_GROUP"
MAX_MESSAGE_GROUP = 64


def check_message_group(name: str) -> str:
    """Return the name. Raises `InvalidArgument` when it cannot name a message group."""
    if not isinstance(name, str):
        raise InvalidArgument(f"the message group is {kind_of(name)}: give text")
    if not 0 < len(name) <= MAX_MESSAGE_GROUP:
        raise InvalidArgument(f"the message group has {len(name)} characters: it must have 1 to {MAX_MESSAGE_GROUP}")
    if not name.isprintable():
        raise InvalidArgument(f"the message group {name!r} has characters that cannot be printed: leave them out")
    return name


def lane_of(name: str) -> int:
    """Return the 32-bit hash by which brokers tell message groups apart, which is never 0."""
    return int(google_crc32c.value(name.encode())) or 1
