"""FastStream's messages: parsed from messages of the client, passed to handlers, and settled."""

from __future__ import annotations

import sys
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from faststream.exceptions import HandlerException
from faststream.message import StreamMessage, decode_message

from minimq import Message, Reply

#: Properties for the fields of FastStream's messages.
CONTENT_TYPE = "content-type"
CORRELATION_ID = "correlation_id"
REPLY_TOPIC = "reply_to"
#: Marks an empty body, which is sent as one space, since messages of minimq must have a body.
EMPTY_BODY = "empty-body"
#: The property of a request that says where its reply goes.
REQUEST = "REPLY_TO"

_OWN = frozenset({CONTENT_TYPE, CORRELATION_ID, REPLY_TOPIC, EMPTY_BODY, REQUEST})


class Settlement(ABC):
    """Settles the messages of a subscriber."""

    @abstractmethod
    async def acknowledge(self, messages: Sequence[Any]) -> None:
        """Acknowledge messages."""

    @abstractmethod
    async def release(self, messages: Sequence[Any], delay_s: float | None, error: BaseException | None) -> None:
        """Release messages for redelivery after a delay; bury those that have had `max_deliveries` deliveries."""

    @abstractmethod
    async def bury(self, messages: Sequence[Any], reason: str) -> None:
        """Move messages to the dead letters; an orderly subscriber can only skip them."""


#: The reason of a dead letter that a handler rejected without giving one.
REJECTED = "rejected"
_MAX_NAME = 100


def reason_of(error: BaseException | None) -> str:
    """Return the reason of a dead letter, in the words of minimq's other consumers."""
    return "listener called nack" if error is None else f"listener raised {type(error).__name__[:_MAX_NAME]}"


class MinimqMessage(StreamMessage[Any]):
    """A message, or a list of them for a batch subscriber. Settled once: later calls do nothing.

    `raw_message` is a `minimq.WorkQueueMessage`, a `minimq.ReceivedMessage` of an orderly subscriber, a tuple of them
    in a batch, or the `minimq.Reply` to a request.
    """

    settlement: Settlement | None = None

    @property
    def _raw_messages(self) -> Sequence[Any]:
        return self.raw_message if isinstance(self.raw_message, tuple) else (self.raw_message,)

    async def ack(self) -> None:
        """Acknowledge the message, and wait until the ack is on disk. Raises as `minimq.WorkQueueConsumer.ack`."""
        if self.committed is None and self.settlement is not None:
            await self.settlement.acknowledge(self._raw_messages)
        await super().ack()

    async def nack(self, delay_s: float | None = None) -> None:
        """Release the message for redelivery after a delay in seconds, by default the one in `retry_delays_s`.

        An orderly subscriber retries after `orderly_retry_delay_s`, and raises `FeatureNotSupportedException` for any
        other delay.
        """
        if self.committed is None and self.settlement is not None:
            await self.settlement.release(self._raw_messages, delay_s, sys.exception())
        await super().nack()

    async def reject(self, reason: str | None = None) -> None:
        """Move the message to the dead letters at once. An orderly subscriber skips it, with a warning.

        Args:
            reason: the reason; None for the exception that is being handled, or "rejected".
        """
        if self.committed is None and self.settlement is not None:
            error = sys.exception()
            if reason is None:
                reason = REJECTED if error is None or isinstance(error, HandlerException) else reason_of(error)
            await self.settlement.bury(self._raw_messages, reason)
        await super().reject()


class MinimqParser:
    """Parses messages of one subscriber, or replies."""

    def __init__(self, settlement: Settlement | None = None) -> None:
        self._settlement = settlement

    async def parse_message(self, message: Any) -> MinimqMessage:
        properties: Mapping[str, str] = message.properties
        parsed = MinimqMessage(
            raw_message=message,
            body=_body_of(message),
            headers=_headers_of(properties),
            reply_to=properties.get(REQUEST) or properties.get(REPLY_TOPIC, ""),
            content_type=properties.get(CONTENT_TYPE),
            correlation_id=properties.get(CORRELATION_ID),
            message_id=getattr(message, "message_id", None),
        )
        parsed.settlement = self._settlement
        return parsed

    async def parse_batch(self, messages: Sequence[Any]) -> MinimqMessage:
        """Return the messages of a call as one message whose body is a list."""
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
        """Return the body, decoded by its content type. A coroutine, because FastStream awaits decoders."""
        return decode_message(message)

    async def decode_batch(self, message: StreamMessage[Any]) -> list[Any]:
        """Return the bodies of the messages of a call, each decoded by its content type."""
        return [decode_message(await self.parse_message(each)) for each in message.raw_message]


def _body_of(message: Message | Reply) -> bytes:
    return b"" if message.properties.get(EMPTY_BODY) else bytes(message.body)


def _headers_of(properties: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in properties.items() if name not in _OWN}
