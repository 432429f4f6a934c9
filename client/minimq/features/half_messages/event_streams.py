"""Streams on which brokers send the checks of half messages to a producer."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable
from contextlib import suppress

from minimq.connection.client import ClusterClient
from minimq.connection.master_calls import call_master
from minimq.connection.retry_schedule import PAUSE_S
from minimq.connection.stream import Stream
from minimq_common.errors import Closed, MinimqError, Unavailable
from minimq_common.model import TopicRoute
from minimq_common.retry_log import RetryLog
from minimq_proto.v1 import staged_pb2

log = logging.getLogger(__name__)

#: Called with the name of a broker and an event from it, on the event loop; it must be quick.
OnEvent = Callable[[str, staged_pb2.ClientEvent], None]


class EventStream:
    """An event stream to the master of one broker, reopened whenever it ends. See `Master`."""

    def __init__(self, streams: EventStreams, broker_name: str) -> None:
        self._streams, self.broker_name = streams, broker_name
        self.address = ""
        self.events = 0
        self._outage = RetryLog(log)
        self._ended: asyncio.Future[None] | None = None

    async def run(self) -> None:
        """Keep the stream open until this is cancelled, or the connection is closed."""
        with suppress(Closed):
            while True:
                await call_master(self, self._attend, math.inf, again=lambda _, error: not isinstance(error, Closed))
                await asyncio.sleep(PAUSE_S)

    async def find(self, limit_s: float) -> str:
        brokers = await self._streams.client.nameservers.brokers_of_all(settled=True, timeout_s=limit_s)
        master = next((each.master for each in brokers if each.broker_name == self.broker_name), None)
        if master is None:
            raise Unavailable(f"no name server knows a master of broker {self.broker_name} now")
        return master

    def failed(self, address: str, error: MinimqError) -> None:
        text = "client: no event stream broker=%s address=%s error=%s"
        self._outage.failed(text, self.broker_name, address, error, cause=error, level=logging.DEBUG)

    async def _attend(self, address: str, _: float) -> None:
        events, self.address = self.events, address
        self._ended = ended = asyncio.get_running_loop().create_future()

        def end(error: MinimqError | None) -> None:
            if not ended.done():
                ended.set_exception(error or Unavailable(f"{address} ended the stream"))

        stream: Stream[staged_pb2.EventsRequest, staged_pb2.ClientEvent] = Stream(
            self._streams.client.connection, address, lambda stub: stub.of(staged_pb2).Events, self._on_event, end
        )
        stream.send(self._streams.hello)
        try:
            await ended
        except MinimqError as error:
            if self.events == events:
                raise
            self.failed(address, error)  # not raised, as the stream has worked: the backoff starts over
        finally:
            stream.cancel()

    def moved(self, address: str) -> None:
        """Reconnect if the broker has a new master: the former one may hang without ending the stream."""
        if self._ended is not None and not self._ended.done() and self.address != address:
            self._ended.set_exception(Unavailable(f"{address} is the master of broker {self.broker_name} now"))

    def _on_event(self, event: staged_pb2.ClientEvent) -> None:
        self.events += 1
        if event.HasField("opened"):
            self._outage.worked("client: event stream is back broker=%s", self.broker_name)
        else:
            self._streams.on_event(self.broker_name, event)


class EventStreams:
    """The event streams of one client, by broker name. On the event loop of the connection."""

    def __init__(self, client: ClusterClient, hello: staged_pb2.EventsRequest, on_event: OnEvent) -> None:
        self.client = client
        self.hello = hello
        self.on_event = on_event
        self._attendances: dict[str, EventStream] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        client.routes.on_change(self._route_changed)

    def attend(self, broker_name: str) -> None:
        """Open an event stream to a broker unless there is one. Does not wait."""
        if broker_name not in self._attendances:
            attendance = self._attendances[broker_name] = EventStream(self, broker_name)
            self._tasks.add(asyncio.create_task(attendance.run(), name=f"events-{broker_name}"))

    def close(self) -> None:
        """Close all streams, without waiting for their ends."""
        for task in self._tasks:
            task.cancel()
        self._attendances.clear()

    def _route_changed(self, route: TopicRoute) -> None:
        for attendance in self._attendances.values():
            master = route.master_of(attendance.broker_name)
            if master is not None:
                attendance.moved(master)
