"""Answers requests, for listeners that return replies, and for `Producer.reply`."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import NamedTuple, Protocol

from minimq.connection.client import ClusterClient
from minimq.connection.loop_thread import CLOSED
from minimq.sending.requests.reply import Reply, encoded_reply
from minimq.sending.requests.reply_sender import ReplySender
from minimq.transport.client_log import client_logger
from minimq_common.errors import Closed, InvalidArgument
from minimq_common.properties import REPLY_TO, ReplyTo, reply_to
from minimq_proto.v1 import attend_pb2

log = client_logger(__name__)

#: A request that nobody waits for any more is not answered. The clocks of two machines may differ by so much, in ms.
_CLOCKS_DIFFER_MS = 10_000
#: The most that any broker takes, which has a limit of its own.
MOST_BODY_BYTES = 32 << 20
#: Seconds for which a consumer that closes waits for replies on their way.
CLOSE_S = 1.0


class RequestMessage(Protocol):
    """A message that was received, such as a `ReceivedMessage`."""

    @property
    def topic(self) -> str:
        """Topic of the message."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the message."""

    @property
    def born_ms(self) -> int:
        """When the message was handed to its producer, in ms since 1970."""


class PreparedReply(NamedTuple):
    """A reply that can be sent."""

    to: ReplyTo
    topic: str
    made: attend_pb2.RequestReply


class Replier:
    """Sends replies to those who asked. Thread-safe."""

    def __init__(self, client: ClusterClient, max_body_bytes: int) -> None:
        self._connection = client.connection
        self._max_body_bytes = max_body_bytes
        self._sender = ReplySender(client)
        self._is_closed = False

    def answer(self, request: RequestMessage, reply: Reply) -> None:
        """Answer a request; see `Producer.reply`."""
        self._connection.check_open()
        if self._is_closed:
            raise Closed(CLOSED)
        prepared = self.prepare(request, reply)
        if prepared is None:
            raise InvalidArgument(f"the message has no property {REPLY_TO} that names an inbox: it is no request")
        self.send(request, prepared)

    def prepare(self, request: RequestMessage, reply: Reply) -> PreparedReply | None:
        """Return the reply to a message, ready to be sent; None if the message is no request. Sends nothing."""
        to = reply_to(request.properties.get(REPLY_TO, ""))
        made = encoded_reply(reply, to.correlation_id if to is not None else "", self._max_body_bytes)
        return PreparedReply(to, request.topic, made) if to is not None else None

    def send(self, request: RequestMessage, prepared: PreparedReply) -> None:
        """Send a reply, unless nobody waits for it any more. Returns at once."""
        age_ms = time.time_ns() // 1_000_000 - request.born_ms
        if age_ms > prepared.to.wait_ms + _CLOCKS_DIFFER_MS:
            self._sender.outcomes["expired"] += 1
            text = "client: a request is not answered, it has waited no longer than %s ms topic=%s age_ms=%s"
            log.info(text, prepared.to.wait_ms, prepared.topic, age_ms)
            return
        self._sender.send(*prepared)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all replies are forwarded or dropped; return whether they are."""
        return self._sender.wait(timeout_s)

    def close(self, timeout_s: float) -> None:
        """Wait until all replies are forwarded, for a while; drop the others. Idempotent."""
        self._is_closed = True
        self._sender.wait(timeout_s)
        self._sender.close()
