"""Messages of the client become messages of FastStream."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from faststream.message import StreamMessage, decode_message

from faststream_minimq.message import MinimqMessage, Settlement
from minimq import Message, Reply

#: Properties in which a message carries what FastStream knows of it.
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TOPIC = "reply_to"
#: A message of minimq has a body. This property stands for an empty one, whose body is one space.
EMPTY_BODY = "empty-body"
#: The property of a request, whose reply goes to the inbox that it names.
INBOX = "REPLY_TO"

_OWN = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TOPIC, EMPTY_BODY, INBOX})


class MinimqParser:
    """Parses messages of one subscriber, and replies.

    Args:
        settlement: settles the messages; None for replies, and in memory.
    """

    def __init__(self, settlement: Settlement | None = None) -> None:
        self._settlement = settlement

    async def parse_message(self, message: Any) -> MinimqMessage:
        """Return a message or a reply as handlers have it."""
        properties: Mapping[str, str] = message.properties
        parsed = MinimqMessage(
            raw_message=message,
            body=_body_of(message),
            headers=_headers_of(properties),
            reply_to=properties.get(INBOX) or properties.get(REPLY_TOPIC, ""),
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID),
            message_id=getattr(message, "message_id", None),
        )
        parsed.settlement = self._settlement
        return parsed

    async def parse_batch(self, messages: Sequence[Any]) -> MinimqMessage:
        """Return the messages of a call as one, whose body is a list."""
        first: Mapping[str, str] = messages[0].properties
        parsed = MinimqMessage(
            raw_message=tuple(messages),
            body=[_body_of(message) for message in messages],
            headers=_headers_of(first),
            batch_headers=[_headers_of(message.properties) for message in messages],
            content_type=first.get(CONTENT_TYPE),
            correlation_id=first.get(CORRELATION_ID),
            message_id=messages[0].message_id,
        )
        parsed.settlement = self._settlement
        return parsed

    async def decode_message(self, message: StreamMessage[Any]) -> Any:
        """Return the body, decoded by its content type."""
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """Return the bodies of the messages of a call, each decoded by its content type."""
        return [decode_message(await self.parse_message(each)) for each in message.raw_message]


def _body_of(message: Message | Reply) -> bytes:
    return b"" if message.properties.get(EMPTY_BODY) else bytes(message.body)


def _headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _OWN}
