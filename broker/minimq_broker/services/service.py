"""The gRPC service of the broker: each call goes to the service of its noun, each error to the caller."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar

import grpc.aio

from minimq_broker.services.append import AppendService
from minimq_broker.services.engine import Engine
from minimq_broker.services.offsets import OffsetService
from minimq_broker.services.pull import PullService
from minimq_broker.services.session import SessionOptions, SessionService
from minimq_broker.services.topics import TopicService
from minimq_common.errors import MiniMQError
from minimq_common.rpc import abort
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

Context = grpc.aio.ServicerContext
Request = TypeVar("Request")
Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class Identity:
    """Which broker this is."""

    cluster: str
    broker_name: str
    broker_id: int
    version: str
    started_ms: int


class BrokerService(broker_pb2_grpc.BrokerServicer):
    """All calls of one broker."""

    def __init__(self, engine: Engine, identity: Identity, sessions: SessionOptions) -> None:
        self._engine = engine
        self._identity = identity
        self._append = AppendService(engine)
        self._pull = PullService(engine)
        self._session = SessionService(engine, sessions)
        topics, offsets = TopicService(engine), OffsetService(engine)
        self.CreateTopic = _answering(topics.create)
        self.UpdateTopic = _answering(topics.update)
        self.DeleteTopic = _answering(topics.delete)
        self.DescribeTopic = _answering(topics.describe)
        self.GetOffset = _answering(offsets.at_time)
        self.CommitOffsets = _answering(offsets.commit)
        self.GetCommitted = _answering(offsets.committed)
        self.GetStatus = _answering(self._status)

    async def Append(self, requests: AsyncIterator[broker_pb2.AppendRequest], context: Context) -> None:  # noqa: D102
        await self._append.serve(requests, context)

    async def Pull(self, requests: AsyncIterator[broker_pb2.PullRequest], context: Context) -> None:  # noqa: D102
        await self._pull.serve(requests, context)

    async def Session(self, requests: AsyncIterator[broker_pb2.SessionRequest], context: Context) -> None:  # noqa: D102
        try:
            await self._session.serve(requests, context)
        except MiniMQError as error:
            await abort(context, error)

    async def _status(self, request: broker_pb2.GetStatusRequest) -> broker_pb2.GetStatusResponse:
        store, identity = self._engine.store, self._identity
        return broker_pb2.GetStatusResponse(
            cluster=identity.cluster,
            broker_name=identity.broker_name,
            broker_id=identity.broker_id,
            version=identity.version,
            started_ms=identity.started_ms,
            log_start=store.log.start,
            log_end=store.state.position,
            segments=len(store.log.segments),
            disk_bytes=store.log.disk_bytes,
            messages_in=self._engine.counters.messages_in,
            messages_out=self._engine.counters.messages_out,
            commits=store.commits,
        )


def _answering(
    call: Callable[[Request], Awaitable[Response]],
) -> Callable[[Request, Context], Awaitable[Response]]:
    """Return a unary call that answers with what `call` returns, or ends with the error it raises."""

    async def answer(request: Request, context: Context) -> Response:
        try:
            return await call(request)
        except MiniMQError as error:
            await abort(context, error)

    return answer


