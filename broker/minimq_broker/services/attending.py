"""Clients that attend: each is told what comes for it, on one stream."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator

import grpc.aio

from minimq_broker.services.attendants import Attendant, Attendants
from minimq_broker.services.engine import Engine
from minimq_broker.services.streams import raise_failure
from minimq_common.errors import InvalidArgument, Unavailable
from minimq_common.names import check_client_id, check_group
from minimq_common.reply_address import MIN_KEY_BYTES
from minimq_common.security.caller import current_caller
from minimq_common.stream_writer import StreamWriter
from minimq_proto.v1 import attend_pb2

log = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[attend_pb2.AttendRequest, attend_pb2.AttendEvent]


class AttendService:
    """The `Attend` call of the broker; anew with each role."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._is_retired = False
        self.attendants = Attendants()

    def retire(self) -> None:
        """Admit nobody any more: another role has begun."""
        self._is_retired = True

    async def serve(self, requests: AsyncIterator[attend_pb2.AttendRequest], context: Context) -> None:
        """Tell a client its events until it closes its side. Raises `NotMaster`, and `InvalidArgument`."""
        self._engine.writes.check()
        incoming = aiter(requests)
        hello = await anext(incoming, None)
        if hello is None:
            return
        if self._is_retired:
            raise Unavailable("the role of this broker has changed: attend again")
        _check(hello)
        attendant = self.attendants.new(hello, current_caller().user)
        writer: StreamWriter[attend_pb2.AttendEvent] = StreamWriter(context, self._engine.unsent)
        attendant.receiver = self._engine.streams.receive(_receive(attendant, incoming), "attend-receiver")
        attendant.tell(attend_pb2.AttendEvent(attending=attend_pb2.Attending()))
        self.attendants.enter(attendant)
        try:
            while await attendant.some():
                await writer.write(attendant.take, lambda: attendant.next_size)
        finally:
            attendant.receiver.cancel()
            self.attendants.leave(attendant)
        raise_failure(attendant.receiver)


def _check(hello: attend_pb2.AttendRequest) -> None:
    check_client_id(hello.client_id)
    if hello.inbox_key and len(hello.inbox_key) < MIN_KEY_BYTES:
        raise InvalidArgument(
            f"the key of the inbox has {len(hello.inbox_key)} bytes: it must have {MIN_KEY_BYTES}, or others guess it"
        )
    for group in hello.producer_groups:
        check_group(group)


async def _receive(attendant: Attendant, incoming: AsyncIterator[attend_pb2.AttendRequest]) -> None:
    try:
        async for _ in incoming:
            raise InvalidArgument("a client that attends says so once in a stream")
    finally:
        attendant.end()
