"""Replies: each batch of them is forwarded to the stream of the client that has the inbox, and forgotten."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence

import grpc.aio

from minimq_broker.services.attendants import Attendants
from minimq_broker.services.engine import Engine
from minimq_broker.services.streams import raise_failure
from minimq_common.security.caller import current_caller
from minimq_common.stream_writer import StreamWriter
from minimq_proto.v1 import attend_pb2

Context = grpc.aio.ServicerContext[attend_pb2.ReplyRequest, attend_pb2.ReplyResponse]

#: Bytes of replies that may wait for one client to read them; one batch that is larger is forwarded if nothing else
#: waits.
MAX_UNREAD_BYTES = 1 << 20
#: Bytes that may wait for all clients; with more, each gets small batches, and those if it has read all before.
MAX_UNREAD_IN_ALL = 64 << 20
_SMALL_BYTES = 64 << 10
#: Bytes that a batch with one reply has besides the body, at most: its properties, of which a message has as many.
_AROUND_BODY = 256 << 10

FORWARDED = attend_pb2.REPLY_OUTCOME_FORWARDED
NOT_OPEN = attend_pb2.REPLY_OUTCOME_NOT_OPEN
UNREAD = attend_pb2.REPLY_OUTCOME_UNREAD
TOO_LARGE = attend_pb2.REPLY_OUTCOME_TOO_LARGE

_NAMES = {FORWARDED: "forwarded", NOT_OPEN: "not-open", UNREAD: "unread", TOO_LARGE: "too-large"}


class ReplyService:
    """The `Reply` call of the broker; anew with each role."""

    def __init__(self, engine: Engine, attendants: Attendants) -> None:
        self._engine = engine
        self._attendants = attendants

    async def serve(self, requests: AsyncIterator[attend_pb2.ReplyRequest], context: Context) -> None:
        """Forward replies until the client closes its side. Raises `NotMaster`."""
        self._engine.writes.check()
        writer: StreamWriter[attend_pb2.ReplyResponse] = StreamWriter(context, self._engine.unsent)
        receiver = self._engine.streams.receive(self._receive(requests, writer), "reply-receiver")
        try:
            await asyncio.wait((receiver,))
        finally:
            receiver.cancel()
        await writer.drained()
        raise_failure(receiver)

    async def _receive(
        self, requests: AsyncIterator[attend_pb2.ReplyRequest], writer: StreamWriter[attend_pb2.ReplyResponse]
    ) -> None:
        async for request in requests:
            if (rate := current_caller().received) is not None:
                await rate.turn()
                rate.moved(request.ByteSize())
            outcomes = [self._forward(item) for item in request.inboxes]
            response = attend_pb2.ReplyResponse(request_id=request.request_id, outcomes=outcomes)
            await writer.write(response.SerializeToString)

    def _forward(self, item: attend_pb2.InboxReplies) -> attend_pb2.ReplyOutcome.ValueType:
        outcome = self._try(item, len(item.replies))
        self._engine.counters.replies[_NAMES[outcome]] += item.count
        return outcome

    def _try(self, item: attend_pb2.InboxReplies, size: int) -> attend_pb2.ReplyOutcome.ValueType:
        if size > self._engine.limits.max_body_bytes + _AROUND_BODY:
            return TOO_LARGE
        attendant = self._attendants.with_inbox(item.inbox)
        if attendant is None:
            return NOT_OPEN
        if attendant.unread_bytes and attendant.unread_bytes + size > MAX_UNREAD_BYTES:
            return UNREAD
        if self._attendants.unread_bytes + size > MAX_UNREAD_IN_ALL and (attendant.unread_bytes or size > _SMALL_BYTES):
            return UNREAD
        attendant.tell(attend_pb2.AttendEvent(replies=item.replies))
        return FORWARDED


def outcome_names() -> Sequence[str]:
    """Return what may become of replies, by the names that metrics give it."""
    return [*_NAMES.values()]
