"""A message that is handed in alone is checked alone: in a batch it would spoil those it travels with."""

from __future__ import annotations

from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.message_group import check_message_group
from minimq_common.batch.records import MAX_METADATA, MAX_TAG, SEPARATOR
from minimq_common.model import NO_PROPERTIES, Message

_LISTS = (list, tuple)


def check_message(message: Message, max_body_bytes: int) -> int:
    """Return the size of a message: bytes of its body, characters of its keys and properties."""
    size = plain_size(message, max_body_bytes)
    if size is not None:
        return size
    # Anything unusual goes the long way, so that the rules stand in one place: what makes a batch is a message.
    if message.message_group is not None:
        check_message_group(message.message_group)
    records = BatchBuilder(max_body_bytes, message_group=message.message_group)
    records.add([message])
    records.build(0, 0, 0)
    return records.size


def plain_size(message: Message, max_body_bytes: int) -> int | None:
    """Return the size of a message that is certainly in order, at a tenth of the cost of a batch. None for others."""
    body, tag, keys, properties = message.body, message.tag, message.keys, message.properties
    if type(body) is not bytes or len(body) > max_body_bytes or type(keys) not in _LISTS:
        return None
    size = len(body)
    if properties is not NO_PROPERTIES and (type(properties) is not dict or properties):
        return None
    if tag is not None and (type(tag) is not str or len(tag) > MAX_TAG or not tag.isascii() or SEPARATOR in tag):
        return None
    if keys:
        without = size
        size += len(keys) - 1
        for key in keys:
            if type(key) is not str or not key.isascii() or SEPARATOR in key:
                return None
            size += len(key)
        if size - without > MAX_METADATA:
            return None
    return size
