"""Replies on their way to the inboxes of those who asked."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import Counter, deque
from collections.abc import Iterable
from functools import partial
from typing import NamedTuple

from minimq.connection.at_master import RoutedMaster, answer_of, at_master
from minimq.connection.client import ClusterClient
from minimq.connection.connection import Connection
from minimq.connection.stream import CorrelatedStream, Part
from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError
from minimq_common.outage_log import OutageLog
from minimq_common.properties import ReplyTo
from minimq_common.wire.protocol_bounds import MAX_INBOXES, MAX_REPLIES
from minimq_common.wire.rpc import from_failure
from minimq_proto.v1 import attend_pb2

log = client_logger(__name__)

#: Requests under way to one broker; replies that come meanwhile go together.
_WINDOW = 4
#: Bytes of the replies of one request, and of those for one inbox in it; the last one may overshoot them.
_REQUEST_BYTES = 1 << 20
_INBOX_BYTES = 256 << 10
#: Bytes of replies that may wait; with more, those that come are dropped.
_MOST_BYTES = 16 << 20
#: A reply is tried again for so long, and no longer than its request waits, in seconds: a fail-over takes less.
_AGAIN_FOR_S = 10.0
#: Pause before an inbox that is not open is looked for again, in seconds.
_PAUSE_S = 0.1


class _WaitingReply(NamedTuple):
    """A reply that nobody has taken yet."""

    to: ReplyTo
    topic: str
    made: attend_pb2.RequestReply
    size: int
    until: float


class ReplyStream(CorrelatedStream[attend_pb2.ReplyRequest, attend_pb2.ReplyResponse, attend_pb2.ReplyResponse]):
    """Brings replies to one broker."""

    def __init__(self, connection: Connection, address: str) -> None:
        self.address = address
        super().__init__(connection, address, lambda stub: stub.Reply, _parts)


def _parts(response: attend_pb2.ReplyResponse) -> Iterable[Part[attend_pb2.ReplyResponse]]:
    return (Part(response.request_id, response),)


class ReplySender:
    """Sends replies to brokers, those that gather meanwhile together. Thread-safe.

    A reply that cannot be forwarded is tried again while its request may still wait; nobody waits for it here.
    """

    def __init__(self, client: ClusterClient) -> None:
        self.client = client
        self._connection = client.connection
        self.outcomes: Counter[str] = Counter()
        self._came: deque[_WaitingReply] = deque()
        #: How often the loop has looked at these, and for which of these times it was woken. As in a `Stream`, no flag
        #: that both sides change: Ctrl-C may come between any two steps of who sends.
        self._looks, self._woken = 0, -1
        self._is_used = False
        self._outage = OutageLog(log)
        # What follows belongs to the event loop.
        self._lines: dict[str, _ReplyLine] = {}
        self._bytes = 0
        self._is_closed = False
        self._waiters: list[threading.Event] = []

    def send(self, to: ReplyTo, topic: str, made: attend_pb2.RequestReply) -> None:
        """Send a reply. Returns at once."""
        until = time.monotonic() + min(to.wait_ms / 1000, _AGAIN_FOR_S)
        self._came.append(_WaitingReply(to, topic, made, made.ByteSize(), until))
        self._is_used = True
        looks = self._looks
        if self._woken != looks:
            self._connection.call_soon(self._look)
            self._woken = looks

    def wait(self, timeout_s: float) -> bool:
        """Wait until all replies are forwarded or dropped; return whether they are. Without a limit if infinite."""
        done = threading.Event()
        if not self._is_used or not self._connection.call_soon(self._tell_when_done, done):
            return True
        return done.wait(None if timeout_s == math.inf else max(timeout_s, 0.0))

    def close(self) -> None:
        """End; drop what is not forwarded yet. From any thread; does not wait for that."""
        if self._is_used:
            self._connection.call_soon(self._end)

    # ---- on the event loop ----------------------------------------------------------------------

    def _look(self) -> None:
        self._looks += 1  # first: whoever adds one from here on wakes the loop again
        while self._came:
            reply = self._came.popleft()
            if self._is_closed or (self._bytes and self._bytes + reply.size > _MOST_BYTES):
                self.outcomes["dropped"] += 1
                if not self._is_closed:
                    text = "client: too many replies wait, more are dropped bytes=%d broker=%s"
                    self._outage.failed(text, self._bytes, reply.to.broker_name)
                continue
            self._bytes += reply.size
            line = self._lines.get(reply.to.broker_name)
            if line is None:
                line = self._lines[reply.to.broker_name] = _ReplyLine(self, reply.to.broker_name)
            line.add(reply)
        for line in self._lines.values():
            line.flush()
        self._look_whether_done()

    def over(self, replies: Iterable[_WaitingReply], outcome: str) -> None:
        """Forget replies, and count what became of them."""
        for reply in replies:
            self._bytes -= reply.size
            self.outcomes[outcome] += 1
        self._look_whether_done()

    def _look_whether_done(self) -> None:
        if self._bytes > 0 or self._came:
            return
        self._outage.worked("client: replies are sent again")
        waiters, self._waiters = self._waiters, []
        for done in waiters:
            done.set()

    def _tell_when_done(self, done: threading.Event) -> None:
        self._waiters.append(done)
        self._look()

    def failed(self, broker_name: str, error: MiniMQError) -> None:
        """Log that replies cannot be brought to a broker."""
        text = "client: replies cannot be sent, will try again broker=%s error=%s"
        self._outage.failed(text, broker_name, error, cause=error, level=logging.DEBUG)

    def _end(self) -> None:
        self._is_closed = True
        for line in self._lines.values():
            line.close()
        self._lines.clear()
        self._came.clear()
        self._bytes = 0
        self._look_whether_done()


class _ReplyLine:
    """Replies that go to one broker. Lives on the event loop."""

    def __init__(self, sender: ReplySender, broker_name: str) -> None:
        self._sender = sender
        self._broker_name = broker_name
        self._waiting: deque[_WaitingReply] = deque()
        self._under_way: set[asyncio.Task[None]] = set()
        self._stream: ReplyStream | None = None

    def add(self, reply: _WaitingReply) -> None:
        self._waiting.append(reply)

    def flush(self) -> None:
        """Send what waits, as far as there is room."""
        while self._waiting and len(self._under_way) < _WINDOW:
            late = []
            now = time.monotonic()
            while self._waiting and self._waiting[0].until <= now:
                late.append(self._waiting.popleft())
            if late:
                self._sender.over(late, "late")
                continue
            task = asyncio.create_task(self._bring(self._next()))
            self._under_way.add(task)
            task.add_done_callback(self._brought)

    def _brought(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled():
            self.flush()

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()
        if self._stream is not None:
            self._stream.close()
        self._waiting.clear()

    def _next(self) -> dict[bytes, list[_WaitingReply]]:
        parts: dict[bytes, list[_WaitingReply]] = {}
        sizes: Counter[bytes] = Counter()
        size = 0
        while self._waiting and size < _REQUEST_BYTES:
            reply = self._waiting[0]
            inbox = reply.to.inbox
            part = parts.get(inbox)
            if part is None:
                if len(parts) == MAX_INBOXES:
                    break
                part = parts[inbox] = []
            elif len(part) == MAX_REPLIES or sizes[inbox] + reply.size > _INBOX_BYTES:
                break
            part.append(self._waiting.popleft())
            sizes[inbox] += reply.size
            size += reply.size
        return parts

    async def _bring(self, parts: dict[bytes, list[_WaitingReply]]) -> None:
        replies = [reply for part in parts.values() for reply in part]
        master = RoutedMaster(self._sender.client, replies[0].topic, self._broker_name)
        left_s = max(reply.until for reply in replies) - time.monotonic()
        try:
            response = await at_master(master, partial(self._send, parts), left_s, again=self._failed)
        except MiniMQError as error:
            log.warning("client: replies were not taken broker=%s error=%s", self._broker_name, error)
            self._sender.over(replies, "late" if error.retriable else "dropped")
        else:
            self._answered(parts, response)

    def _failed(self, _: str, error: MiniMQError) -> bool:
        self._sender.failed(self._broker_name, error)
        return error.retriable

    async def _send(self, parts: dict[bytes, list[_WaitingReply]], address: str) -> attend_pb2.ReplyResponse:
        if self._stream is None or self._stream.ended or self._stream.address != address:
            self._stream = ReplyStream(self._sender.client.connection, address)
        items = [
            attend_pb2.InboxReplies(
                inbox=inbox,
                replies=attend_pb2.ReplyBatch(replies=[reply.made for reply in part]).SerializeToString(),
                count=len(part),
            )
            for inbox, part in parts.items()
        ]

        def make(request_id: int) -> attend_pb2.ReplyRequest:
            return attend_pb2.ReplyRequest(request_id=request_id, inboxes=items)

        response: attend_pb2.ReplyResponse = await answer_of(partial(self._stream.request, make))
        if response.HasField("failure"):
            raise from_failure(response.failure)
        return response

    def _answered(self, parts: dict[bytes, list[_WaitingReply]], response: attend_pb2.ReplyResponse) -> None:
        again: list[_WaitingReply] = []
        for part, outcome in zip(parts.values(), response.outcomes, strict=False):
            if outcome == attend_pb2.REPLY_OUTCOME_NOT_OPEN:  # the requester may be about to be back
                again += part
            elif outcome == attend_pb2.REPLY_OUTCOME_UNREAD:
                self._sender.over(part, "unread")
            elif outcome == attend_pb2.REPLY_OUTCOME_TOO_LARGE:
                size = max(reply.size for reply in part)
                log.error("client: a reply is too large for its broker bytes=%d broker=%s", size, self._broker_name)
                self._sender.over(part, "too-large")
            else:
                self._sender.over(part, "forwarded")
        if again:
            loop = asyncio.get_running_loop()
            loop.call_later(_PAUSE_S, self._once_more, again)

    def _once_more(self, replies: list[_WaitingReply]) -> None:
        self._waiting.extendleft(reversed(replies))
        self.flush()
