"""Replies, the messages that carry them, and the property of a request that says where they go. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple, Protocol

import msgspec

from minimq.consuming.received import ReceivedMessage
from minimq_common.errors import InvalidArgument
from minimq_common.model import NO_PROPERTIES, Message, MessageQueue
from minimq_common.names import MAX_BROKER, MAX_TOPIC, REPLY_PREFIX
from minimq_common.text_units import kind_of

#: A message with this property is a request; see `ReplyTo`.
REPLY_TO = "REPLY_TO"
#: The property of a reply with its error, if there is one.
_ERROR = "REPLY_ERROR"
#: Bytes of the random tag of a requester, and of the id of a request.
TAG_BYTES, ID_BYTES = 8, 12
_VALUE = re.compile(
    rf"({REPLY_PREFIX}[a-zA-Z0-9_.-]{{0,{MAX_TOPIC - len(REPLY_PREFIX)}}})/([a-zA-Z0-9_.@-]{{1,{MAX_BROKER}}})"
    rf"/([0-9]{{1,4}})/([0-9a-f]{{{2 * TAG_BYTES}}})/([0-9a-f]{{{2 * ID_BYTES}}})/([0-9]{{1,9}})\Z"
)


class Reply(msgspec.Struct, frozen=True, gc=False):
    """The reply to a request: returned by a listener, and by `request`.

    Attributes:
        body: the payload; may be empty.
        properties: names and values, both text.
        error: why the service failed, if it did. The requester gets `RequestFailed` with this text.
    """

    body: bytes = b""
    properties: Mapping[str, str] = NO_PROPERTIES
    error: str | None = None


class RequestMessage(Protocol):
    """A received message, such as a `ReceivedMessage`."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the message."""

    @property
    def born_ms(self) -> int:
        """When the message was sent, in ms since 1970."""


class ReplyTo(NamedTuple):
    """The value of the property `REPLY_TO` of a request: "topic/broker/queue id/tag/request id/ms"."""

    queue: MessageQueue
    #: Tag of the requester, by which it filters.
    tag: str
    request_id: str
    #: How long the requester waits.
    wait_ms: int

    def __str__(self) -> str:
        return f"{self.queue}/{self.tag}/{self.request_id}/{self.wait_ms}"


def reply_to(request: RequestMessage) -> ReplyTo | None:
    """Return where the reply to a message goes; None if it is not a request. Applications may set the property, too."""
    found = _VALUE.match(request.properties.get(REPLY_TO, ""))
    if found is None:
        return None
    topic, broker_name, queue_id, tag, request_id, wait_ms = found.groups()
    return ReplyTo(MessageQueue(topic, broker_name, int(queue_id)), tag, request_id, int(wait_ms))


def message_of(reply: Reply, topic: str, tag: str, request_id: str) -> Message:
    """Return the message that carries a reply; its key is the id of the request. Raises `InvalidArgument`."""
    if not isinstance(reply, Reply):
        raise InvalidArgument(f"the reply is {kind_of(reply)}: give a minimq.Reply")
    properties: object = reply.properties
    if not isinstance(properties, Mapping) or _ERROR in properties:
        raise InvalidArgument(f"the properties of the reply must be a mapping without {_ERROR}")
    if reply.error is not None:
        properties = {**properties, _ERROR: reply.error}
    return Message(topic, reply.body, tag, (request_id,), properties)


def reply_of(message: Message | ReceivedMessage) -> tuple[str, Reply]:
    """Return the id of the request, and the reply, that a message carries."""
    properties = {**message.properties}
    error = properties.pop(_ERROR, None)
    return "".join(message.keys), Reply(message.body, properties or NO_PROPERTIES, error)
