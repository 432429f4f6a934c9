"""Sends replies to requests, for listeners that return replies, and for `Producer.reply`."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import NamedTuple, Protocol

from minimq.connection.client import ClusterClient
from minimq.connection.client_log import client_logger
from minimq.connection.loop_calls import answer_of
from minimq.connection.loop_thread import CLOSED
from minimq.connection.master_calls import RoutedMaster, call_master
from minimq.connection.retry_schedule import PAUSE_S
from minimq.connection.stream import CorrelatedStream, Part
from minimq.features.requests.reply import Reply, encoded_reply
from minimq_common.errors import Closed, InvalidArgument, MinimqError
from minimq_common.properties import REPLY_TO, ReplyTo, reply_to
from minimq_common.retry_log import RetryLog
from minimq_common.wire.protocol_bounds import MAX_INBOXES, MAX_REPLIES
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import events_pb2

log = client_logger(__name__)

#: Tolerance in deciding that a request has expired at its requester, whose clock may differ.
_MAX_CLOCK_SKEW_MS = 10_000
#: Upper limit of every broker, whatever its options.
MAX_BODY_BYTES = 32 << 20
#: A consumer that closes waits this long for its replies.
CLOSE_S = 1.0
#: Replies in one `ReplyRequest`, and those for one inbox in it; the last reply may exceed them.
_MAX_REQUEST_BYTES = 1 << 20
_MAX_INBOX_BYTES = 256 << 10
#: Most bytes of queued replies; further ones are dropped.
_MAX_BYTES = 16 << 20
#: Retries of a reply last at most this long, and no longer than its requester waits; a fail-over takes less.
_MAX_RETRY_S = 10.0


class RequestMessage(Protocol):
    """A received message, such as a `ReceivedMessage`."""

    @property
    def topic(self) -> str:
        """Topic of the message."""

    @property
    def properties(self) -> Mapping[str, str]:
        """Properties of the message."""

    @property
    def born_ms(self) -> int:
        """When the message was sent, in ms since 1970."""


class PreparedReply(NamedTuple):
    to: ReplyTo
    topic: str
    made: events_pb2.RequestReply
    size: int
    #: End of its retries, in seconds on the monotonic clock.
    until: float


class Replier:
    """Sends replies to requesters; replies that arrive while a request is in flight are sent together. Thread-safe."""

    def __init__(self, client: ClusterClient, max_body_bytes: int) -> None:
        self.client = client
        self._connection = client.connection
        self._max_body_bytes = max_body_bytes
        self.outcomes: Counter[str] = Counter()
        self._is_used = self._is_closed = False
        self._outage = RetryLog(log)
        # Owned by the event loop.
        self._lines: dict[str, _ReplyQueue] = {}
        self._bytes = 0
        self.has_ended = False
        self._waiters: list[threading.Event] = []
        client.connection.at_end(self._end)

    def answer(self, request: RequestMessage, reply: Reply) -> None:
        """See `Producer.reply`."""
        self._connection.check_open()
        if self._is_closed:
            raise Closed(CLOSED)
        prepared = self.prepare(request, reply)
        if prepared is None:
            raise InvalidArgument(f"the message has no property {REPLY_TO} that names an inbox: it is no request")
        self.send(request, prepared)

    def prepare(self, request: RequestMessage, reply: Reply) -> PreparedReply | None:
        """Validate and encode a reply, without sending it; None if the message is not a request."""
        to = reply_to(request.properties.get(REPLY_TO, ""))
        made = encoded_reply(reply, to.correlation_id if to is not None else "", self._max_body_bytes)
        if to is None:
            return None
        until = time.monotonic() + min(to.wait_ms / 1000, _MAX_RETRY_S)
        return PreparedReply(to, request.topic, made, made.ByteSize(), until)

    def send(self, request: RequestMessage, prepared: PreparedReply) -> None:
        """Send a reply in the background, unless the request has expired."""
        age_ms = time.time_ns() // 1_000_000 - request.born_ms
        if age_ms > prepared.to.wait_ms + _MAX_CLOCK_SKEW_MS:
            self.outcomes["expired"] += 1
            text = "client: dropped a reply, its request has expired timeout_ms=%s topic=%s age_ms=%s"
            log.info(text, prepared.to.wait_ms, prepared.topic, age_ms)
            return
        self._is_used = True
        self._connection.call_soon(self._add, prepared)

    def wait(self, timeout_s: float) -> bool:
        """Wait until all replies are forwarded or dropped; False after the timeout, which may be infinite."""
        done = threading.Event()
        if not self._is_used or not self._connection.call_soon(self._notify_when_done, done):
            return True
        return done.wait(None if timeout_s == math.inf else max(timeout_s, 0.0))

    def close(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until all replies are forwarded; drop the others. Idempotent."""
        self._is_closed = True
        self.wait(timeout_s)
        self._connection.not_at_end(self._end)
        if self._is_used:
            self._connection.call_soon(self._end)

    # ---- on the event loop ----------------------------------------------------------------------

    def _add(self, reply: PreparedReply) -> None:
        if self.has_ended or (self._bytes and self._bytes + reply.size > _MAX_BYTES):
            self.outcomes["dropped"] += 1
            text = "client: too many replies wait, more are dropped bytes=%d broker=%s"
            self._outage.failed(text, self._bytes, reply.to.broker_name)
            return
        self._bytes += reply.size
        line = self._lines.get(reply.to.broker_name)
        if line is None:
            line = self._lines[reply.to.broker_name] = _ReplyQueue(self, reply.to.broker_name)
        line.waiting.append(reply)
        line.flush()

    def over(self, replies: Iterable[PreparedReply], outcome: str) -> None:
        """Remove replies, and count their outcome."""
        for reply in replies:
            self._bytes -= reply.size
            self.outcomes[outcome] += 1
        self._notify_if_done()

    def _notify_if_done(self) -> None:
        if self._bytes <= 0:
            self._outage.worked("client: replies are sent again")
            waiters, self._waiters = self._waiters, []
            for done in waiters:
                done.set()

    def _notify_when_done(self, done: threading.Event) -> None:
        self._waiters.append(done)
        self._notify_if_done()

    def failed(self, broker_name: str, error: MinimqError) -> None:
        text = "client: replies cannot be sent, will try again broker=%s error=%s"
        self._outage.failed(text, broker_name, error, cause=error, level=logging.DEBUG)

    def _end(self) -> None:
        self.has_ended = True
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._bytes = 0
        self._notify_if_done()


_Stream = CorrelatedStream[events_pb2.ReplyRequest, events_pb2.ReplyResponse, events_pb2.ReplyResponse]


class _ReplyQueue:
    """Sends the replies for one broker in order, one request at a time. On the event loop."""

    def __init__(self, replier: Replier, broker_name: str) -> None:
        self._replier = replier
        self._broker_name = broker_name
        self.waiting: deque[PreparedReply] = deque()
        self._sending: asyncio.Task[None] | None = None
        self._stream: _Stream | None = None

    def flush(self) -> None:
        """Send the waiting replies, unless a task already does."""
        if self.waiting and self._sending is None:
            self._sending = asyncio.create_task(self._send_queued())

    async def _send_queued(self) -> None:
        try:
            while self.waiting:
                if self.waiting[0].until <= time.monotonic():
                    self._replier.over([self.waiting.popleft()], "late")
                else:
                    await self._bring(self._next())
        finally:
            self._sending = None

    def close(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
        if self._stream is not None:
            self._stream.close()
        self.waiting.clear()

    def _next(self) -> dict[bytes, list[PreparedReply]]:
        parts: dict[bytes, list[PreparedReply]] = {}
        sizes: Counter[bytes] = Counter()
        size = 0
        while self.waiting and size < _MAX_REQUEST_BYTES:
            reply = self.waiting[0]
            inbox = reply.to.inbox
            part = parts.get(inbox, [])
            if not part and len(parts) == MAX_INBOXES:
                break
            if part and (len(part) == MAX_REPLIES or sizes[inbox] + reply.size > _MAX_INBOX_BYTES):
                break
            part.append(self.waiting.popleft())
            parts[inbox] = part
            sizes[inbox] += reply.size
            size += reply.size
        return parts

    async def _bring(self, parts: Mapping[bytes, Sequence[PreparedReply]]) -> None:
        replies = [reply for part in parts.values() for reply in part]
        master = RoutedMaster(self._replier.client, replies[0].topic, self._broker_name)
        left_s = max(reply.until for reply in replies) - time.monotonic()
        try:
            response = await call_master(master, partial(self._send, parts), left_s, again=self._failed)
        except MinimqError as error:
            log.warning("client: replies were not delivered broker=%s error=%s", self._broker_name, error)
            # A permanent error may concern only this topic, such as its deletion: send replies of other topics again.
            others = [] if error.retriable else [reply for reply in replies if reply.topic != master.topic]
            ended = [reply for reply in replies if error.retriable or reply.topic == master.topic]
            self._replier.over(ended, "late" if error.retriable else "dropped")
            self.waiting.extendleft(reversed(others))
        else:
            self._answered(parts, response)

    def _failed(self, _: str, error: MinimqError) -> bool:
        self._replier.failed(self._broker_name, error)
        return error.retriable

    async def _send(
        self, parts: Mapping[bytes, Sequence[PreparedReply]], address: str, limit_s: float
    ) -> events_pb2.ReplyResponse:
        if self._stream is None or self._stream.ended or self._stream.address != address:
            self._stream = CorrelatedStream(
                self._replier.client.connection,
                address,
                lambda stub: stub.Reply,
                lambda response: (Part(response.request_id, response),),
            )
        items = [
            events_pb2.InboxReplies(
                inbox=inbox,
                replies=events_pb2.ReplyBatch(replies=[reply.made for reply in part]).SerializeToString(),
                count=len(part),
            )
            for inbox, part in parts.items()
        ]

        def make(request_id: int) -> events_pb2.ReplyRequest:
            return events_pb2.ReplyRequest(request_id=request_id, inboxes=items)

        response: events_pb2.ReplyResponse = await answer_of(partial(self._stream.request, make), limit_s)
        if response.HasField("failure"):
            raise from_failure(response.failure)
        return response

    def _answered(self, parts: Mapping[bytes, Sequence[PreparedReply]], response: events_pb2.ReplyResponse) -> None:
        again: list[PreparedReply] = []
        for part, outcome in zip(parts.values(), response.outcomes, strict=False):
            if outcome == events_pb2.REPLY_OUTCOME_NOT_OPEN:  # the requester may be reconnecting
                again += part
            elif outcome == events_pb2.REPLY_OUTCOME_UNREAD:
                self._replier.over(part, "unread")
            elif outcome == events_pb2.REPLY_OUTCOME_TOO_LARGE:
                size = max(reply.size for reply in part)
                log.error("client: a reply is too large for its broker bytes=%d broker=%s", size, self._broker_name)
                self._replier.over(part, "too-large")
            else:
                self._replier.over(part, "forwarded")

        def once_more() -> None:
            if not self._replier.has_ended:
                self.waiting.extendleft(reversed(again))
                self.flush()

        if again:
            asyncio.get_running_loop().call_later(PAUSE_S, once_more)
