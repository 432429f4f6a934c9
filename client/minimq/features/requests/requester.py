"""The open requests of a producer."""

from __future__ import annotations

import asyncio
import math
import os
import random
import time
from collections.abc import Mapping

from minimq.admin.master_client import make_topic
from minimq.arguments import check_message_type
from minimq.connection.master_calls import tried
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import queue_bounds
from minimq.features.requests.reply import ID_BYTES, REPLY_TO, TAG_BYTES, Reply, ReplyTo
from minimq.features.requests.reply_reader import ReplyReader
from minimq.sending.pending_batch import Outcome, UserCall
from minimq.sending.producer_core import ProducerCore
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq_common.errors import (
    Closed,
    DeadlineExceeded,
    InvalidArgument,
    MinimqError,
    RequestFailed,
    TopicNotFound,
    TopicUnavailable,
    Unavailable,
)
from minimq_common.model import NO_PROPERTIES, Message, MessageQueue, Permission, TopicRoute, with_property
from minimq_common.names import REPLY_PREFIX, check_topic
from minimq_common.wire.protocol_bounds import DAY_MS
from minimq_proto.v1 import broker_pb2

#: Queues of a reply topic on each broker. A reply wakes the waiting pulls of its queue: 500 requesters share 64 queues.
_QUEUES = 64
#: How long replies are kept for a requester that has lost its connection.
_RETENTION_MS = 600_000
#: If a broker does not answer in this time, the next one is tried.
_BROKER_TIMEOUT_S = 1.0


class OpenRequest:
    """A request without a reply. Also the `Outcome` of its message: if the message fails, so does the request."""

    __slots__ = ("_open", "_outcome", "_receipt", "deadline", "frames", "id", "timeout_s")

    def __init__(self, open_requests: dict[str, OpenRequest], timeout_s: float, outcome: Outcome[Reply]) -> None:
        self._open = open_requests
        self._outcome = outcome
        self._receipt: SendReceipt | None = None
        #: `ReplyReader.frames` at the beginning.
        self.frames = 0
        self.id = os.urandom(ID_BYTES).hex()
        self.timeout_s = timeout_s
        self.deadline = time.monotonic() + timeout_s

    def __call__(self, outcome: SendReceipt | MinimqError) -> UserCall | None:
        """Process the receipt of the message, and wait on for the reply; or fail the request."""
        if isinstance(outcome, MinimqError):
            return self.end(outcome)
        self._receipt = outcome
        return None

    def end(self, outcome: Reply | MinimqError) -> UserCall | None:
        """Deliver the reply or the error to the requester, unless the request has ended."""
        return self._outcome(outcome) if self._open.pop(self.id, None) is not None else None

    def late(self) -> DeadlineExceeded:
        if self._receipt is None:
            state = "it was not acknowledged yet, and may be stored or not"
        else:
            queue, offset = self._receipt.queue, self._receipt.queue_offset
            state = f"it is stored in queue {queue} at offset {offset}, and has no reply yet"
        return DeadlineExceeded(f"no reply to the request came within {self.timeout_s:g} s: {state}")


class Requester:
    """Sends requests, and assigns replies to them. Thread-safe.

    Replies go to one queue of the reply topic, with the tag of this requester. If the broker of that queue is
    unavailable, later requests name a queue of another one.

    There is no lock: a request belongs to the code that removes it from the dictionary, which is atomic.
    """

    def __init__(self, core: ProducerCore) -> None:
        self._core = core
        self._client = core.client
        self._health = core.client.connection.health
        self._topic = check_topic(core.options.reply_topic or REPLY_PREFIX)
        if not self._topic.startswith(REPLY_PREFIX):
            raise InvalidArgument(f"reply_topic is {self._topic!r}: its name must begin with {REPLY_PREFIX}")
        self._tag = os.urandom(TAG_BYTES).hex()
        #: By id.
        self.open: dict[str, OpenRequest] = {}
        #: Number of replies that arrived after their requests had ended.
        self.late_replies = 0
        #: The reader whose queue new requests name.
        self.home: ReplyReader | None = None
        #: When the loop checks for expired requests; infinite if there are none.
        self._check_at = math.inf
        # Owned by the event loop.
        self._readers: dict[str, ReplyReader] = {}
        self._opening = asyncio.Lock()
        self._timer: asyncio.TimerHandle | None = None
        core.closers.append(self._close)
        core.client.connection.at_end(self._end_all)
        core.client.routes.on_change(self._route_changed)

    # ---- requests -------------------------------------------------------------------------------

    def send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: Selector | None,
        outcome: Outcome[Reply],
        timeout_s: float,
    ) -> OpenRequest:
        """Send a request. Blocks if its topic is not known, no reply queue is read, or the buffer is full."""
        request = self.new(message, outcome, timeout_s)
        try:
            if not self.is_ready(message.topic):
                self._client.wait(lambda: self.prepare(message, request.deadline))
            self._core.send(self.begin(request, message), queue, selector, request, deadline=request.deadline)
        except BaseException:
            self.forget(request)
            raise
        return request

    def new(self, message: Message, outcome: Outcome[Reply], timeout_s: float) -> OpenRequest:
        """Return a request that has not begun. Raises `InvalidArgument` for a bad message or timeout."""
        check_message_type(message)
        properties: object = message.properties
        if properties is not NO_PROPERTIES and (not isinstance(properties, Mapping) or REPLY_TO in properties):
            raise InvalidArgument(f"the properties must be a mapping without {REPLY_TO}, which is set by the request")
        if message.deliver_after_s is not None or message.deliver_at is not None:
            raise InvalidArgument("a request is delivered at once: leave out its due time, or use send")
        if not 0 < timeout_s * 1000 <= DAY_MS:
            raise InvalidArgument(f"the timeout must be above 0, and at most {DAY_MS // 1000} s")
        return OpenRequest(self.open, timeout_s, outcome)

    def begin(self, request: OpenRequest, message: Message) -> Message:
        """Register a request before it is sent; return the message with its property `REPLY_TO`."""
        assert self.home is not None  # see `is_ready`
        request.frames = self.home.frames
        self.open[request.id] = request
        if request.deadline < self._check_at:
            self._check_at = request.deadline
            self._client.connection.call_soon(self._check)
        wait_ms = max(round((request.deadline - time.monotonic()) * 1000), 1)
        return with_property(message, REPLY_TO, str(ReplyTo(self.home.queue, self._tag, request.id, wait_ms)))

    def forget(self, request: OpenRequest) -> None:
        """Unregister a request: its reply is dropped."""
        self.open.pop(request.id, None)

    def _close(self) -> None:
        self._client.connection.not_at_end(self._end_all)
        self._end_all()
        self._client.connection.call_soon(self._close_readers)

    def _end_all(self) -> None:
        for request in [*self.open.values()]:
            self._run(request.end(Closed("the producer was closed, or its cluster, before the reply came")))

    def _run(self, call: UserCall | None) -> None:
        if call is not None:
            self._core.callbacks.run(call)

    # ---- where replies go -----------------------------------------------------------------------

    def is_ready(self, topic: str) -> bool:
        """Return whether a request to a topic can begin without `prepare`."""
        return self._core.knows(topic) and self._reads()

    def _reads(self) -> bool:
        home, route = self.home, self._client.routes.known(self._topic)
        master = route.master_of(home.queue.broker_name) if home is not None and route is not None else None
        return home is not None and not home.has_failed and master is not None and not self._health.is_silent(master)

    async def prepare(self, message: Message, deadline: float) -> None:
        """Find the topic of a request, and read a reply queue. On the event loop of the connection."""
        make = message.message_group is None
        await self._core.finder.find(message.topic, make=make, timeout_s=deadline - time.monotonic())
        try:
            async with asyncio.timeout_at(asyncio.get_running_loop().time() + deadline - time.monotonic()):
                async with self._opening:
                    if not self._reads():
                        self.home = await tried(self._open_home, deadline - time.monotonic())
        except MinimqError:
            raise
        except TimeoutError:
            text = f"no broker of topic {self._topic}, to which replies go, answered in time"
            raise DeadlineExceeded(text) from None

    async def _open_home(self, left_s: float) -> ReplyReader:
        route = await self._route(left_s)
        queues = route.write_queues()
        random.shuffle(queues)
        by_broker = {queue.broker_name: queue for queue in queues}
        error: MinimqError = Unavailable(f"no broker of topic {self._topic}, to which replies go, is available now")
        for name in sorted(by_broker, key=lambda name: self._health.is_silent(route.master_of(name) or "")):
            reader = self._readers.get(name)
            if reader is not None and not reader.has_failed:
                return reader
            queue, timeout_s = by_broker[name], min(left_s, _BROKER_TIMEOUT_S)
            try:
                bounds = await queue_bounds(ReplicaSelector(self._client), queue, timeout_s)
            except TopicNotFound:  # deleted since
                self._client.routes.forget(self._topic)
                raise Unavailable(f"topic {self._topic}, to which replies go, was deleted") from None
            except MinimqError as failure:
                error = failure
                continue
            self._readers[name] = ReplyReader(self._client, queue, bounds, self._tag, self._on_reply)
            return self._readers[name]
        raise error

    async def _route(self, left_s: float) -> TopicRoute:
        timeout_s = min(left_s, self._client.timeout_s)
        try:
            return await self._client.routes.find(self._topic, timeout_s)
        except (TopicNotFound, TopicUnavailable):
            topic = broker_pb2.Topic(
                topic=self._topic,
                read_queues=_QUEUES,
                write_queues=_QUEUES,
                permission=int(Permission.READ_WRITE),
                retention_ms=_RETENTION_MS,
            )
            await make_topic(self._client, topic, timeout_s / 2)
            return await self._client.routes.find(self._topic, timeout_s)

    # ---- on the event loop ----------------------------------------------------------------------

    def _route_changed(self, route: TopicRoute) -> None:
        for reader in self._readers.values() if route.topic == self._topic else ():
            reader.tick()

    def _close_readers(self) -> None:
        for reader in self._readers.values():
            reader.close()
        if self._timer is not None:
            self._timer.cancel()

    def _check(self) -> None:
        self._check_at = math.inf  # first: a request that begins from here on calls this again
        now, home = time.monotonic(), self.home
        for request in [*self.open.values()]:
            if request.deadline <= now:
                if home is not None and request.frames == home.frames:  # its broker may have failed
                    self._note_silence(home)
                self._run(request.end(request.late()))
        first = min((request.deadline for request in [*self.open.values()]), default=math.inf)
        if self._timer is not None:
            self._timer.cancel()
        if first < math.inf:
            self._check_at = first
            self._timer = asyncio.get_running_loop().call_later(max(first - now, 0.0), self._check)

    def _note_silence(self, home: ReplyReader) -> None:
        route = self._client.routes.known(self._topic)
        master = route.master_of(home.queue.broker_name) if route is not None else None
        if master is not None:
            self._health.failed(master, DeadlineExceeded("no reply came"))

    def _on_reply(self, request_id: str, reply: Reply) -> None:
        request = self.open.get(request_id)
        if request is None:  # only the first reply to each request counts
            self.late_replies += 1
        elif reply.error is None:
            self._run(request.end(reply))
        else:
            self._run(request.end(RequestFailed(reply.error, reply.body, reply.properties)))
