"""Receipt handles: texts by which any process of a group can settle a message."""

from __future__ import annotations

import base64
import binascii
import struct
from typing import NamedTuple

import google_crc32c
import msgspec

from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue

_CHECKSUM = struct.Struct("<I")
#: Characters of a text that an error shows.
_SHOWN = 40
_MAX_TEXT = 2_048


class _Parts(msgspec.Struct, frozen=True, array_like=True):
    group: str
    topic: str
    broker_name: str
    queue_id: int
    offset: int
    epoch: int


class ReceiptHandle(NamedTuple):
    """One delivery of one message.

    Attributes:
        group: the consumer group.
        queue: the queue of the message.
        offset: its offset there.
        epoch: of the delivery.
    """

    group: str
    queue: MessageQueue
    offset: int
    epoch: int

    def __str__(self) -> str:
        queue = self.queue
        parts = _Parts(self.group, queue.topic, queue.broker_name, queue.queue_id, self.offset, self.epoch)
        data = msgspec.msgpack.encode(parts)
        return base64.urlsafe_b64encode(_CHECKSUM.pack(google_crc32c.value(data)) + data).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> ReceiptHandle:
        """Return the handle of a text. Raises `InvalidArgument` if the text is none."""
        try:
            if len(text) > _MAX_TEXT:
                raise ValueError
            raw = base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
            [checksum], data = _CHECKSUM.unpack(raw[: _CHECKSUM.size]), raw[_CHECKSUM.size :]
            if google_crc32c.value(data) != checksum:
                raise ValueError
            parts = msgspec.msgpack.decode(data, type=_Parts)
        except (ValueError, binascii.Error, struct.error, msgspec.MsgspecError):
            raise InvalidArgument(
                f"{text[:_SHOWN]!r} is no receipt handle, or a part of one: give it as the `handle` of the message was"
            ) from None
        queue = MessageQueue(parts.topic, parts.broker_name, parts.queue_id)
        return cls(parts.group, queue, parts.offset, parts.epoch)
