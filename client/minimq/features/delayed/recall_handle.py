"""Recall handles: texts with which any process can recall a delayed message."""

from __future__ import annotations

import msgspec

from minimq.handle_text import from_text, to_text
from minimq_common.errors import InvalidArgument
from minimq_common.names import check_broker, check_topic
from minimq_common.text_units import kind_of

#: The largest number that the protocol carries.
_MAX_NUMBER = (1 << 63) - 1
#: Maximum number of characters of a handle that an error shows.
_SHOWN = 40


class RecallHandle(msgspec.Struct, frozen=True, array_like=True):
    topic: str
    broker_name: str
    due_ms: int
    recall_id: int

    def __str__(self) -> str:
        return to_text(self)

    @classmethod
    def parse(cls, text: object) -> RecallHandle:
        """Parse a handle. Raises `InvalidArgument`."""
        if text is None:
            raise InvalidArgument(
                "there is no recall handle: a receipt has one if the message was sent with recallable=True"
            )
        if not isinstance(text, str):
            raise InvalidArgument(f"the recall handle is {kind_of(text)}: give the text of receipt.recall_handle")
        try:
            handle = from_text(text, cls)
            check_topic(handle.topic)
            check_broker(handle.broker_name)
            if not 0 <= min(handle.due_ms, handle.recall_id) <= max(handle.due_ms, handle.recall_id) <= _MAX_NUMBER:
                raise ValueError("a number is out of range")
        except (ValueError, InvalidArgument):
            raise InvalidArgument(
                f"{text[:_SHOWN]!r} is no recall handle, or a part of one: give it as receipt.recall_handle was"
            ) from None
        return handle
