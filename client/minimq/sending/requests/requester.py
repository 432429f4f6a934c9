"""The inbox of a producer, and the requests that are answered there."""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections.abc import Callable, Mapping

from google.protobuf.message import DecodeError

from minimq.arguments import check_message_type
from minimq.connection.at_master import RoutedMaster
from minimq.connection.client import ClusterClient
from minimq.sending.callback_thread import CallbackThread
from minimq.sending.receipt_future import Awaited
from minimq.sending.requests.attend_streams import Attendance, AttendStreams
from minimq.sending.requests.open_requests import CorrelationIds, OpenRequest, OpenRequests, ReplyOutcome
from minimq.sending.requests.reply import Reply
from minimq.sending.selectors import Selector
from minimq.transport.client_log import client_logger
from minimq.transport.home_process import check_no_signal
from minimq_common.errors import Closed, DeadlineExceeded, InvalidArgument, MiniMQError
from minimq_common.model import NO_PROPERTIES, Message, MessageQueue, TopicRoute
from minimq_common.properties import MAX_WAIT_MS, REPLY_TO, inbox_of
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import attend_pb2

log = client_logger(__name__)

#: Random bytes of the key of an inbox.
_KEY_BYTES = 32


class Requester:
    """Opens the inbox of a producer where replies can reach it, and gives each reply to its request. Thread-safe.

    The inbox is open at one broker of each topic to which requests are sent, at the same one as long as that is there.
    """

    def __init__(
        self,
        client: ClusterClient,
        callbacks: CallbackThread,
        find: Callable[..., TopicRoute],
        send: Callable[..., None],
    ) -> None:
        self._client = client
        self._find = find
        self._send = send
        self._health = client.connection.health
        self._requests = OpenRequests(client.connection, callbacks.run)
        self._ids: CorrelationIds | None = None
        #: The broker at which the inbox is open for requests to a topic.
        self._homes: dict[str, Attendance] = {}
        self._inbox = ""  # address, in hexadecimal digits
        self._streams: AttendStreams | None = None  # of the event loop
        client.connection.at_end(self._end)

    @property
    def late_replies(self) -> int:
        """Number of replies that came when nobody waited for them any more."""
        return self._requests.late_replies

    # ---- the inbox ------------------------------------------------------------------------------

    def home(self, route: TopicRoute) -> Attendance | None:
        """Return where requests to a topic are answered; None if that is not open: then see `open_inbox`."""
        home = self._homes.get(route.topic)
        return home if home is not None and self._is_good(home, route) else None

    def home_of(self, topic: str) -> Attendance | None:
        """Return where requests to a topic are answered; None if that is not open, or the topic is not known."""
        route = self._client.routes.known(topic)
        return self.home(route) if route is not None else None

    def _is_good(self, home: Attendance, route: TopicRoute) -> bool:
        return home.is_open and home.broker_name in route.brokers and not self._health.is_silent(home.address)

    async def open_inbox(self, route: TopicRoute, deadline: float) -> Attendance:
        """Open the inbox at a broker of a topic, on the event loop of the connection."""
        streams = self._begin()
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

    def _begin(self) -> AttendStreams:
        if self._streams is None:
            key, self._ids = os.urandom(_KEY_BYTES), CorrelationIds()
            self._inbox = inbox_of(key).hex()
            hello = attend_pb2.AttendRequest(client_id=f"requester-{self._inbox[:8]}", inbox_key=key)
            self._streams = AttendStreams(self._client, hello, self._happened)
        return self._streams

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
        outcome: ReplyOutcome,
        timeout_s: float,
    ) -> OpenRequest:
        """Send a request, which is ended at its deadline; wait for its topic and the inbox, if these are not known."""
        check_no_signal()  # what it has interrupted may be at the same requests
        check_message_type(message)
        self.check(message, timeout_s)
        deadline = time.monotonic() + timeout_s
        route = self._find(message.topic, make=message.message_group is None, timeout_s=timeout_s)
        home = self.home(route) or self._client.wait(lambda: self.open_inbox(route, deadline))
        request, reply_to = self.begin(home, outcome, timeout_s, deadline)
        try:
            self._send(message, queue, selector, request, reply_to)
        except BaseException:
            self.forget(request)
            raise
        return request

    def ask(self, message: Message, queue: MessageQueue | None, selector: Selector | None, timeout_s: float) -> Reply:
        """Send a request, wait, and return the reply. Raises as `Producer.request`."""
        awaited: Awaited[Reply] = Awaited()
        request = self.request(message, queue, selector, awaited, timeout_s)
        try:
            return awaited.result()
        finally:
            self.forget(request)  # if it was interrupted, as by Ctrl-C

    @staticmethod
    def check(message: Message, timeout_s: float) -> None:
        """Raise `InvalidArgument` if a message cannot be a request, or wait for so long."""
        properties: object = message.properties
        if properties is not NO_PROPERTIES and isinstance(properties, Mapping) and REPLY_TO in properties:
            raise InvalidArgument(f"the message has the property {REPLY_TO}, which is set by the request: leave it out")
        if message.deliver_after_s is not None or message.deliver_at is not None:
            raise InvalidArgument("a request is delivered at once: leave out its due time, or use send")
        if not 0 < timeout_s * 1000 <= MAX_WAIT_MS:
            raise InvalidArgument(f"the timeout must be above 0, and at most {MAX_WAIT_MS // 1000} s")

    def begin(
        self, home: Attendance, outcome: ReplyOutcome, timeout_s: float, deadline: float
    ) -> tuple[OpenRequest, str]:
        """Let a request wait for its reply, before it is sent; return its property `REPLY_TO` as well."""
        assert self._ids is not None  # the inbox is open
        request = OpenRequest(self._requests, self._ids.new(), timeout_s, deadline, outcome, home)
        self._requests.add(request)
        wait_ms = max(round((deadline - time.monotonic()) * 1000), 1)
        return request, f"{home.broker_name}/{self._inbox}/{request.correlation_id}/{wait_ms}"

    def forget(self, request: OpenRequest) -> None:
        """Let nobody wait for a request any more."""
        self._requests.forget(request)

    def close(self) -> None:
        """Close the inbox, and end all requests by `Closed`. Idempotent."""
        self._client.connection.not_at_end(self._end)
        self._end()
        if self._streams is not None:
            self._streams.close()

    def _end(self) -> None:
        self._requests.end_all(lambda: Closed("the producer was closed, or its cluster, before the reply came"))

    def _happened(self, broker_name: str, event: attend_pb2.AttendEvent) -> None:
        if event.WhichOneof("event") != "replies":
            return  # of a newer broker
        try:
            batch = attend_pb2.ReplyBatch.FromString(event.replies)
            check_bounds(batch)
        except (DecodeError, MiniMQError) as error:  # whoever has a request may send anything
            log.warning("client: dropped replies that cannot be read broker=%s error=%s", broker_name, error)
            return
        for item in batch.replies:
            self._requests.answered(item.correlation_id, item)
