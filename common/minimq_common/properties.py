"""The property with the message group. Pure."""

from __future__ import annotations

import google_crc32c

from minimq_common.errors import InvalidArgument
from minimq_common.text_units import kind_of

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
