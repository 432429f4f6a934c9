"""Answers of handlers, and commands to publish."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self, Unpack, cast

from faststream.response.publish_type import PublishType
from faststream.response.response import BatchPublishCommand, PublishCommand, Response

from faststream_minimq.message import CONTENT_TYPE, CORRELATION_ID, EMPTY_BODY, REPLY_TOPIC
from minimq import Message, MessageFields, ReceivedMessage, Reply


def checked(fields: MessageFields, defaults: MessageFields | None = None) -> MessageFields:
    """Return `fields` with `defaults` for those that are not set.

    Raises `TypeError` for an unknown field, and for `properties`: FastStream calls them headers.
    """
    if unknown := fields.keys() - (MessageFields.__annotations__.keys() - {"properties"}):
        raise TypeError(f"a message has no field {', '.join(sorted(unknown))}")
    given = {name: value for name, value in fields.items() if value not in (None, ())}
    return cast("MessageFields", {**(defaults or {}), **given})


class MinimqResponse(Response):
    """The answer of a handler, with headers and further fields of the message that is sent.

    Args:
        body: the body of the answer.
        headers: names and values, which become properties.
        correlation_id: by default the id of the message that is answered.
        error: why a request failed; its sender gets `minimq.errors.RequestFailed` with this text.
        fields: further fields of the message, see `MessageFields`.
    """

    def __init__(
        self,
        body: Any = None,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        error: str | None = None,
        **fields: Unpack[MessageFields],
    ) -> None:
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = checked(fields)
        self.error = error

    def as_publish_command(self) -> MinimqPublishCommand:
        """Return the command that publishes the answer."""
        return MinimqPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            options=self.options,
            error=self.error,
            _publish_type=PublishType.PUBLISH,
        )


class MinimqPublishCommand(BatchPublishCommand):
    """One or more bodies to publish, to send as a request, or to send as a reply."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        topic: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        options: MessageFields | None = None,
        timeout_s: float = 3.0,
        error: str | None = None,
        _publish_type: PublishType,
    ) -> None:
        super().__init__(
            body,
            *bodies,
            destination=topic,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            _publish_type=_publish_type,
        )
        self.options: MessageFields = options or {}
        self.timeout_s = timeout_s
        self.request: ReceivedMessage | None = None
        self.error = error

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Convert any command to this class."""
        if isinstance(cmd, cls):
            return cmd
        body, others = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *others,
            topic=cmd.destination,
            headers=cmd.headers,
            correlation_id=cmd.correlation_id,
            reply_to=cmd.reply_to,
            _publish_type=cmd.publish_type,
        )

    def message(self, body: bytes, content_type: str | None) -> Message:
        """Return a message with an encoded body."""
        fields: MessageFields = {**self.options, "properties": self._properties(body, content_type)}
        return Message(self.destination, body or b" ", **fields)

    def reply(self, body: bytes, content_type: str | None) -> Reply:
        """Return a reply with an encoded body."""
        return Reply(body, self._properties(body, content_type), self.error)

    def _properties(self, body: bytes, content_type: str | None) -> Mapping[str, str]:
        properties = {name: str(value) for name, value in (self.headers or {}).items()}
        own = {CONTENT_TYPE: content_type, CORRELATION_ID: self.correlation_id, REPLY_TOPIC: self.reply_to}
        properties.update((name, value) for name, value in own.items() if value)
        if not body:
            properties[EMPTY_BODY] = "1"
        return properties
