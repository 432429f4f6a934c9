"""Sends replies to requests, for listeners that return replies, and for `Producer.reply`."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

from minimq.features.requests.reply import REPLY_TO, Reply, RequestMessage, message_of, reply_to
from minimq.sending.pending_batch import PENDING_BYTES, PendingMessage
from minimq.sending.producer_core import ProducerCore
from minimq.sending.receipt import SendReceipt
from minimq_common.batch.builder import PROPERTY_BYTES
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument, MinimqError
from minimq_common.names import REPLY_PREFIX
from minimq_common.retry_log import RetryLog

log = logging.getLogger(__name__)

#: Tolerance in deciding that a request has expired at its requester, whose clock may differ.
_MAX_CLOCK_SKEW_MS = 10_000


class PreparedReply(NamedTuple):
    item: PendingMessage
    #: Since 1970.
    expires_ms: int


class Replier:
    """Sends replies as messages, without waiting for their topics, room or receipts. Thread-safe."""

    def __init__(self, core: ProducerCore) -> None:
        self._routes = core.client.routes
        self._sender = core.sender
        self._max_body_bytes = core.options.max_body_bytes
        self._outage = RetryLog(log)

    def answer(self, request: RequestMessage, reply: Reply) -> None:
        prepared = self.prepare(request, reply)
        if prepared is None:
            raise InvalidArgument(f"the message has no property {REPLY_TO} of minimq: it is not a request")
        self.send(prepared)

    def prepare(self, request: RequestMessage, reply: Reply) -> PreparedReply | None:
        """Validate a reply, without sending it; None if the message is not a request."""
        to = reply_to(request)
        if to is None:
            check_message(message_of(reply, REPLY_PREFIX, "tag", "id"), self._max_body_bytes)
            return None
        message = message_of(reply, to.queue.topic, to.tag, to.request_id)
        size = check_message(message, self._max_body_bytes)
        memory = size + PENDING_BYTES + PROPERTY_BYTES * len(message.properties)
        item = PendingMessage(message, to.queue, size, self._sent, memory=memory)
        return PreparedReply(item, request.born_ms + to.wait_ms + _MAX_CLOCK_SKEW_MS)

    def send(self, reply: PreparedReply) -> None:
        """Send a reply in the background, unless the request has expired or the buffer is full. Raises `Closed`."""
        topic = reply.item.message.topic
        if time.time_ns() // 1_000_000 > reply.expires_ms:
            log.info("client: dropped a reply, its request has expired topic=%s", topic)
            return
        self._routes.watch(topic)
        if self._sender.add(reply.item) is not None:
            self._outage.failed("client: dropped a reply, as the buffer of the producer is full topic=%s", topic)

    def _sent(self, outcome: SendReceipt | MinimqError) -> None:
        if isinstance(outcome, MinimqError):
            self._outage.failed("client: a reply was not sent error=%s", outcome, cause=outcome)
        else:
            self._outage.worked("client: replies are sent again")
