"""Replies to requests."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from minimq_common.errors import InvalidArgument, MessageTooLarge
from minimq_common.model import NO_PROPERTIES
from minimq_common.text_units import kind_of
from minimq_proto.v1 import events_pb2

#: Limit for properties and error of a reply together, the same as for a message.
_MAX_CHARACTERS = 32_767


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


def encoded_reply(reply: Reply, correlation_id: str, max_body_bytes: int) -> events_pb2.RequestReply:
    if not isinstance(reply, Reply):
        raise InvalidArgument(f"the reply is {kind_of(reply)}: give a minimq.Reply")
    body, properties = reply.body, reply.properties
    if not isinstance(body, bytes | bytearray | memoryview):
        raise InvalidArgument(f"the body of the reply is {kind_of(body)}: give bytes")
    if len(body) > max_body_bytes:
        raise MessageTooLarge(f"the body of the reply has {len(body)} bytes, the limit is {max_body_bytes} bytes")
    made = events_pb2.RequestReply(correlation_id=correlation_id, body=bytes(body))
    characters = len(reply.error or "")
    try:
        if properties is not NO_PROPERTIES:
            made.properties.update(properties)
            characters += sum(len(name) + len(value) for name, value in properties.items())
        if reply.error is not None:
            made.error = reply.error
    except (TypeError, ValueError, AttributeError) as error:
        raise InvalidArgument(f"the properties and the error of the reply must be text: {error}") from None
    if characters > _MAX_CHARACTERS:
        raise InvalidArgument(
            f"the properties and the error of the reply have {characters} characters, the limit is {_MAX_CHARACTERS}"
        )
    return made


def decoded_reply(reply: events_pb2.RequestReply) -> Reply:
    error = reply.error if reply.HasField("error") else None
    return Reply(reply.body, dict(reply.properties) if reply.properties else NO_PROPERTIES, error)
