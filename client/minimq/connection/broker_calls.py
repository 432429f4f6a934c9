"""Calls to brokers: to one, or to many at once."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping
from typing import TYPE_CHECKING, TypeVar

import grpc.aio

from minimq_common.errors import MiniMQError, Unavailable
from minimq_common.wire.bound_check import check_answer
from minimq_common.wire.channels import Channels
from minimq_common.wire.rpc import from_rpc_error

if TYPE_CHECKING:  # at run time it is the plain stub
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub

Key = TypeVar("Key", bound=Hashable)
Request = TypeVar("Request")
Response = TypeVar("Response")

#: Picks the method of a stub.
BrokerMethod = Callable[["BrokerAsyncStub"], "grpc.aio.UnaryUnaryMultiCallable[Request, Response]"]

#: A broker that is not reached is tried again for this long, in seconds: one that has just come back needs a moment.
RECONNECT_S = 1.5
_PAUSE_S = 0.05
#: Calls to one broker that are under way at once.
_PARALLEL_CALLS = 32


class BrokerCalls:
    """Makes calls to brokers. Used on the event loop of the connection."""

    def __init__(self, channels: Channels[BrokerAsyncStub]) -> None:
        self._channels = channels

    async def call(
        self,
        address: str,
        method: BrokerMethod[Request, Response],
        request: Request,
        timeout_s: float,
        reconnect_s: float = 0.0,
    ) -> Response:
        """Return the answer of one broker."""
        peer = f"broker {address}"
        give_up = time.monotonic() + reconnect_s
        while True:
            try:
                return check_answer(await self._channels.call(address, method, request, timeout_s), peer)
            except grpc.aio.AioRpcError as failure:
                error = from_rpc_error(failure, peer)
            if not isinstance(error, Unavailable) or time.monotonic() >= give_up:
                raise error
            await asyncio.sleep(_PAUSE_S)

    async def call_all(
        self,
        addresses: Mapping[Key, str],
        method: BrokerMethod[Request, Response],
        requests: Mapping[Key, Request],
        timeout_s: float,
        reconnect_s: float = 0.0,
    ) -> tuple[dict[Key, Response], dict[Key, MiniMQError]]:
        """Make many calls at once, and return the answers and the failures by key, in the order of the addresses."""
        room: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(_PARALLEL_CALLS))
        answers: dict[Key, Response] = {}
        failures: dict[Key, MiniMQError] = {}

        async def call(key: Key, address: str) -> None:
            async with room[address]:
                try:
                    answers[key] = await self.call(address, method, requests[key], timeout_s, reconnect_s)
                except MiniMQError as error:
                    failures[key] = error

        keys = [key for key in addresses if key in requests]
        async with asyncio.TaskGroup() as calls:
            for key in keys:
                calls.create_task(call(key, addresses[key]))
        return (
            {key: answers[key] for key in keys if key in answers},
            {key: failures[key] for key in keys if key in failures},
        )
