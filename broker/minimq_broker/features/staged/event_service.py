"""Event streams: each connects the producers of one client, which get the checks of half messages on it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import grpc.aio

from minimq_broker.calls.engine import Engine
from minimq_broker.calls.streams import AnswerStream
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.names import check_client_id, check_group
from minimq_proto.v1 import staged_pb2

Context = grpc.aio.ServicerContext[staged_pb2.EventsRequest, staged_pb2.ClientEvent]


class EventClient(AnswerStream):
    """One client, and the events that wait for it. Belongs to the event loop."""

    def __init__(self, hello: staged_pb2.EventsRequest, context: Any, engine: Engine) -> None:
        super().__init__(context, engine.writes.soon, engine.unsent)
        self.client_id = hello.client_id
        self.producer_groups = tuple(dict.fromkeys(hello.producer_groups))
        self.producer_ids = frozenset(hello.producer_ids)
        self.unread_bytes = 0

    def add(self, event: staged_pb2.ClientEvent) -> None:
        """Queue an event; ignored after the end of the stream."""
        if not self.is_closed:
            self.unread_bytes += event.ByteSize()
            super().add(event)

    def next_size(self) -> int:
        return int(self._answers[0].ByteSize())

    def take(self) -> bytes:
        """Return the next event, and count it as read, because it is about to be written."""
        data = bytes(self._answers.pop(0).SerializeToString())
        self.unread_bytes -= len(data)
        return data


class EventService:
    """The `Events` call of the broker during one role."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_retired = False
        #: Those with a stream, in the order in which they came.
        self.clients: dict[EventClient, None] = {}

    def retire(self) -> None:
        """Reject new clients: another role has begun."""
        self._is_retired = True

    async def serve(self, requests: AsyncIterator[staged_pb2.EventsRequest], context: Context) -> None:
        """Send a client its events until it closes its side. Raises `NotMaster`, `InvalidArgument`, `Unavailable`."""
        self._engine.writes.check()
        incoming = aiter(requests)
        hello = await anext(incoming, None)
        if hello is None:
            return
        if self._is_retired:
            raise Unavailable("the role of this broker has changed: open the event stream again")
        _check(hello)
        client = EventClient(hello, context, self._engine)
        client.add(staged_pb2.ClientEvent(opened=staged_pb2.EventsOpened()))
        self.clients[client] = None
        try:
            await self._engine.streams.serve(_receive(incoming), "events-receiver", client)
        finally:
            del self.clients[client]


def _check(hello: staged_pb2.EventsRequest) -> None:
    check_client_id(hello.client_id)
    for group in hello.producer_groups:
        check_group(group)


async def _receive(incoming: AsyncIterator[staged_pb2.EventsRequest]) -> None:
    async for _ in incoming:
        raise InvalidArgument("a client sends only one request on a stream of Events")
