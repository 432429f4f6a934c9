"""The inbox of a producer, and its open requests."""

from __future__ import annotations

import asyncio
import itertools
import math
import os
import random
import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from google.protobuf.message import DecodeError

from minimq.arguments import check_message_type
from minimq.connection.client import ClusterClient
from minimq.connection.client_log import client_logger
from minimq.connection.loop_calls import Awaited
from minimq.connection.loop_thread import CLOSED
from minimq.connection.master_calls import RoutedMaster
from minimq.features.requests.event_streams import EventStream, EventStreams
from minimq.features.requests.reply import Reply, decoded_reply
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.pending_batch import Outcome, UserCall
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq_common.errors import Closed, DeadlineExceeded, InvalidArgument, MinimqError, RequestFailed
from minimq_common.model import NO_PROPERTIES, Message, MessageQueue, TopicRoute
from minimq_common.properties import MAX_WAIT_MS, REPLY_TO, inbox_of
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import events_pb2

log = client_logger(__name__)

#: Size of the random inbox key, and of the id of a request.
_KEY_BYTES = 32
_ID_BYTES = 12
#: Minimum interval of checks for expired requests.
_LOOK_S = 0.01


class OpenRequest:
    """A request without a reply. Also the `Outcome` of its message: if the message fails, so does the request."""

    __slots__ = ("_events", "_home", "_open", "_outcome", "_receipt", "deadline", "id", "timeout_s")

    def __init__(
        self, open_requests: dict[str, OpenRequest], request_id: str, timeout_s: float, outcome: Outcome[Reply]
    ) -> None:
        self._open = open_requests
        self._outcome = outcome
        self._receipt: SendReceipt | None = None
        self._home: EventStream | None = None
        self._events = 0
        self.id = request_id
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s

    def begin(self, home: EventStream) -> None:
        """Record the broker at which the reply is expected."""
        self._home, self._events = home, home.events

    def unresponsive_address(self) -> str:
        """Return the address of the inbox's broker if it has sent no event since the request began; otherwise ""."""
        home = self._home
        return home.address if home is not None and home.events == self._events else ""

    def complete(self, receipt: SendReceipt | None, error: MinimqError | None, /) -> UserCall | None:
        """Process the receipt of the message, and wait on for the reply; or fail the request."""
        self._receipt = receipt
        return self.end(None, error) if error is not None else None

    def end(self, reply: Reply | None, error: MinimqError | None) -> UserCall | None:
        """Deliver the reply or the error to the requester, unless the request has ended."""
        return self._outcome.complete(reply, error) if self._open.pop(self.id, None) is not None else None

    def late(self) -> DeadlineExceeded:
        if self._receipt is None:
            state = "it was not acknowledged yet, and may be stored or not"
        else:
            queue, offset = self._receipt.queue, self._receipt.queue_offset
            state = f"it is stored in queue {queue} at offset {offset}, and nobody has answered it"
        return DeadlineExceeded(f"no reply to the request came within {self.timeout_s:g} s: {state}")


class Requester:
    """Opens the inbox of a producer, and assigns replies to requests. Thread-safe.

    For each topic of requests, the inbox is open at one of its brokers, at the same one while that is available. There
    is no lock: a request belongs to the code that removes it from the dictionary, which is atomic.
    """

    def __init__(
        self,
        client: ClusterClient,
        callbacks: CallbackThread,
        find: Callable[..., Coroutine[Any, Any, TopicRoute]],
        send: Callable[..., None],
    ) -> None:
        self._client = client
        self._connection = client.connection
        self._callbacks = callbacks
        self._find = find
        self._send = send
        self._health = client.connection.health
        #: By id.
        self._open: dict[str, OpenRequest] = {}
        #: Number of replies that arrived after their requests had ended.
        self.late_replies = 0
        #: The broker with the inbox, by topic of the requests.
        self._homes: dict[str, EventStream] = {}
        self._key = os.urandom(_KEY_BYTES)
        self._inbox = ""  # address, in hexadecimal digits
        self._is_closed = False
        self._numbers = itertools.count()
        #: Time of the next check for expired requests; checks so far, and the count for which the loop was woken.
        self._look_at = math.inf
        self._looks, self._woken = 0, -1
        # Owned by the event loop.
        self._timer: asyncio.TimerHandle | None = None
        self._streams: EventStreams | None = None
        client.connection.at_end(self._end_all)

    # ---- the inbox ------------------------------------------------------------------------------

    def home(self, topic: str) -> EventStream | None:
        """Return the broker with the open inbox for requests to a topic; None if there is none: see `open_inbox`."""
        home, route = self._homes.get(topic), self._client.routes.known(topic)
        if home is None or route is None or not home.is_open or home.broker_name not in route.brokers:
            return None
        return None if self._health.is_silent(home.address) else home

    async def open_inbox(self, message: Message, deadline: float) -> EventStream:
        """Open the inbox at a broker of the topic of a request. On the event loop of the connection."""
        make, left_s = message.message_group is None, deadline - time.monotonic()
        route = await self._find(message.topic, make=make, timeout_s=left_s)
        if self._is_closed:
            raise Closed(CLOSED)
        if self._streams is None:
            self._inbox = inbox_of(self._key).hex()
            hello = events_pb2.EventsRequest(client_id=f"requester-{self._inbox[:8]}", inbox_key=self._key)
            self._streams = EventStreams(self._client, hello, self._on_event)
        streams = self._streams
        masters = [RoutedMaster(self._client, route.topic, name) for name in self._candidates(route)]
        try:
            async with asyncio.timeout(max(deadline - time.monotonic(), 0.0)):
                home = await streams.attend_one(masters)
        except TimeoutError:
            reasons = "; ".join(
                f"{master.broker_name}: {streams.attend(master).error or 'no answer'}" for master in masters
            )
            raise DeadlineExceeded(
                f"the inbox for replies could not be opened at any broker of topic {route.topic!r} in time: "
                f"{reasons or 'none of them has a master now'}"
            ) from None
        self._homes[route.topic] = home
        return home

    def _candidates(self, route: TopicRoute) -> list[str]:
        names = [name for name in sorted(route.brokers) if route.master_of(name) is not None]
        random.Random(self._inbox).shuffle(names)
        return sorted(names, key=lambda name: self._health.is_silent(route.master_of(name) or ""))

    # ---- requests -------------------------------------------------------------------------------

    def request(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[Reply],
        timeout_s: float,
    ) -> None:
        """Send a request. Blocks if its topic is not known, the inbox is not open, or the buffer is full."""
        request = self.new(message, outcome, timeout_s)
        try:
            self._start(request, message, queue, selector)
        except BaseException:
            self.forget(request)
            raise

    def ask(self, message: Message, queue: MessageQueue | None, selector: Selector | None, timeout_s: float) -> Reply:
        """Send a request, and wait for the reply. Raises as `Producer.request`."""
        awaited: Awaited[Reply] = Awaited()
        request = self.new(message, awaited, timeout_s)
        try:
            self._start(request, message, queue, selector)
            return awaited.result()
        finally:
            self.forget(request)  # after an interruption such as Ctrl-C

    def _start(
        self, request: OpenRequest, message: Message, queue: MessageQueue | None, selector: Selector | None
    ) -> None:
        home = self.home(message.topic) or self._client.wait(lambda: self.open_inbox(message, request.deadline))
        self._send(message, queue, selector, request, self.begin(request, home), request.deadline)

    def new(self, message: Message, outcome: Outcome[Reply], timeout_s: float) -> OpenRequest:
        """Return a request that has not begun. Raises `InvalidArgument` for a bad message or timeout."""
        check_message_type(message)
        properties: object = message.properties
        if properties is not NO_PROPERTIES and isinstance(properties, Mapping) and REPLY_TO in properties:
            raise InvalidArgument(f"the message has the property {REPLY_TO}, which is set by the request: leave it out")
        if message.deliver_after_s is not None or message.deliver_at is not None:
            raise InvalidArgument("a request is delivered at once: leave out its due time, or use send")
        if not 0 < timeout_s * 1000 <= MAX_WAIT_MS:
            raise InvalidArgument(f"the timeout must be above 0, and at most {MAX_WAIT_MS // 1000} s")
        return OpenRequest(self._open, self._new_id(), timeout_s, outcome)

    def begin(self, request: OpenRequest, home: EventStream) -> str:
        """Register a request before it is sent; return its property `REPLY_TO`."""
        request.begin(home)
        deadline = request.deadline
        self._open[request.id] = request
        if deadline < self._look_at and self._woken != (looks := self._looks):
            self._connection.call_soon(self._look)
            self._woken = looks
        wait_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        return f"{home.broker_name}/{self._inbox}/{request.id}/{wait_ms}"

    def _new_id(self) -> str:
        # Cannot be guessed from other ids; cheaper than random bytes of the system.
        import hashlib  # only requests need it

        number = next(self._numbers).to_bytes(8, "big")
        return hashlib.blake2b(number, digest_size=_ID_BYTES, key=self._key, person=b"request").hexdigest()

    def forget(self, request: OpenRequest) -> None:
        """Unregister a request: its reply is dropped."""
        self._open.pop(request.id, None)

    def close(self) -> None:
        """Close the inbox, and fail all requests with `Closed`. Idempotent."""
        self._connection.not_at_end(self._end_all)
        self._is_closed = True
        self._end_all()
        self._connection.call_soon(self._close_inbox)

    def _end_all(self) -> None:
        for request in [*self._open.values()]:
            self._run(request.end(None, Closed("the producer was closed, or its cluster, before the reply came")))

    def _run(self, call: UserCall | None) -> None:
        if call is not None:
            self._callbacks.run(call)

    # ---- on the event loop ----------------------------------------------------------------------

    def _close_inbox(self) -> None:
        if self._streams is not None:
            self._streams.close()

    def _look(self) -> None:
        # Fails expired requests, and schedules itself for the next deadline.
        if self._timer is not None:
            self._timer.cancel()
        self._looks += 1
        now = time.monotonic()
        for request in [*self._open.values()]:
            if request.deadline <= now:
                if address := request.unresponsive_address():  # the broker of the inbox may have failed
                    self._health.failed(address, DeadlineExceeded("no reply came"))
                self._run(request.end(None, request.late()))
        self._look_at = self._first_deadline()
        self._look_at = min(self._look_at, self._first_deadline())  # again, for a request that still saw the old value
        if self._look_at < math.inf:
            left_s = max(self._look_at - now, _LOOK_S)
            self._timer = asyncio.get_running_loop().call_later(left_s, self._look)

    def _first_deadline(self) -> float:
        return min((request.deadline for request in [*self._open.values()]), default=math.inf)

    def _on_event(self, broker_name: str, event: events_pb2.ClientEvent) -> None:
        if event.WhichOneof("event") != "replies":
            return  # an event of a newer broker
        try:
            batch = events_pb2.ReplyBatch.FromString(event.replies)
            check_bounds(batch)
        except (DecodeError, MinimqError) as error:  # anyone who has received a request may have sent it
            log.warning("client: dropped replies that cannot be read broker=%s error=%s", broker_name, error)
            return
        for made in batch.replies:  # only the first one to each request counts
            request = self._open.get(made.correlation_id)
            if request is None:
                self.late_replies += 1
                continue
            reply = decoded_reply(made)
            if reply.error is None:
                self._run(request.end(reply, None))
            else:
                self._run(request.end(None, RequestFailed(reply.error, reply.body, reply.properties)))
