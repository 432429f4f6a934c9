"""A message that is handed in alone is checked alone: in a batch it would spoil those it travels with."""

from __future__ import annotations

from minimq_common.batch import MAX_METADATA, MAX_TAG, SEPARATOR
from minimq_common.batch_builder import BatchBuilder
from minimq_common.message_group import check_message_group
from minimq_common.model import NO_PROPERTIES, Message

_LISTS = (list, tuple)


def check_message(message: Message, max_body_bytes: int) -> int:
    """Return the size of a message: bytes of its body, characters of its keys and properties.

    Args:
        message: whose topic is not looked at.
        max_body_bytes: largest body that is let through.

    Raises:
        InvalidArgument: a body is empty or not bytes, or a tag, key, property or message group is not text, has a NUL
            or is too long.
        MessageTooLarge: the body is over the limit.
    """
    size = plain_size(message, max_body_bytes)
    if size:
        return size
    # Anything unusual goes the long way, so that the rules stand in one place: what makes a batch is a message.
    if message.message_group is not None:
        check_message_group(message.message_group)
    records = BatchBuilder(max_body_bytes, message_group=message.message_group, tombstones=True)
    records.add([message])
    records.build(0, 0, 0)
    return records.size


def plain_size(message: Message, max_body_bytes: int) -> int:
    """Return the size of a message that is certainly in order, at a tenth of the cost of a batch; 0 for any other."""
    body, tag, keys, properties = message.body, message.tag, message.keys, message.properties
    # Only a tombstone has no body, and it has a key.
    if type(body) is not bytes or not (keys or body) or len(body) > max_body_bytes or type(keys) not in _LISTS:
        return 0
    size = len(body)
    if properties is not NO_PROPERTIES and (type(properties) is not dict or properties):
        return 0
    if tag is not None and (type(tag) is not str or len(tag) > MAX_TAG or not tag.isascii() or SEPARATOR in tag):
        return 0
    if keys:
        without = size
        size += len(keys) - 1
        for key in keys:
            if type(key) is not str or not key.isascii() or SEPARATOR in key:
                return 0
            size += len(key)
        if size - without > MAX_METADATA:
            return 0
    return size
