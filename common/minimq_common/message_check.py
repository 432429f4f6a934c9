"""A message that is handed in alone is checked alone: in a batch it would spoil those it travels with."""

from __future__ import annotations

from collections.abc import Sequence

from minimq_common.batch import MAX_METADATA, MAX_TAG, SEPARATOR
from minimq_common.batch_builder import BatchBuilder
from minimq_common.model import NO_PROPERTIES, Message

_LISTS = (list, tuple)


def check_message(message: Message, max_body_bytes: int) -> int:
    """Return the size of a message: bytes of its body, characters of its keys and properties.

    Args:
        message: whose topic is not looked at.
        max_body_bytes: largest body that is let through.

    Raises:
        InvalidArgument: a body is empty or not bytes, or a tag, key or property is not text, has a NUL or is too
            long.
        MessageTooLarge: the body is over the limit.
    """
    if is_plain(message, max_body_bytes):
        keys = message.keys
        return len(message.body) + (len(SEPARATOR.join(keys)) if keys else 0)
    # Anything unusual goes the long way, so that the rules stand in one place: what makes a batch is a message.
    records = BatchBuilder(max_body_bytes)
    records.add([message])
    records.build(0, 0, 0)
    return records.size


def is_plain(message: Message, max_body_bytes: int) -> bool:
    """Tell whether a message is certainly in order, at a tenth of the cost of making a batch of it."""
    body, tag, keys, properties = message.body, message.tag, message.keys, message.properties
    if type(body) is not bytes or not 0 < len(body) <= max_body_bytes:
        return False
    if properties is not NO_PROPERTIES and (type(properties) is not dict or properties):
        return False
    if tag is not None and (type(tag) is not str or len(tag) > MAX_TAG or not tag.isascii() or SEPARATOR in tag):
        return False
    return type(keys) in _LISTS and (not keys or _are_plain(keys))


def _are_plain(keys: Sequence[str]) -> bool:
    size = len(keys)
    for key in keys:
        if type(key) is not str or not key.isascii() or SEPARATOR in key:
            return False
        size += len(key)
    return size <= MAX_METADATA
