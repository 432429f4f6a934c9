"""Reflection: tools for gRPC ask a server what its services are."""

# ruff: noqa: N802 - names and contexts are those of the stubs

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from grpc_reflection.v1alpha import reflection, reflection_pb2

from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher, methods_of


def add_reflection(dispatcher: Dispatcher, services: Sequence[str], stopped: asyncio.Event) -> None:
    """Let tools ask what the services of a server are, until it stops."""
    service: Any = reflection_pb2.DESCRIPTOR.services_by_name["ServerReflection"]
    dispatcher.add(service, methods_of(service, _Reflection((*services, reflection.SERVICE_NAME), stopped)))


class _Reflection:
    """Ends its streams when the server stops, which would wait for them otherwise."""

    def __init__(self, services: Sequence[str], stopped: asyncio.Event) -> None:
        self._answers: Any = reflection.aio.ReflectionServicer(services).ServerReflectionInfo  # typed as a coroutine
        self._stopped = stopped

    async def ServerReflectionInfo(
        self, requests: AsyncIterator[reflection_pb2.ServerReflectionRequest], context: Any
    ) -> None:
        async for response in self._answers(_until(self._stopped, requests), context):
            await rpc.write(context, response)


async def _until(stopped: asyncio.Event, requests: AsyncIterator[Any]) -> AsyncIterator[Any]:
    incoming, stop = aiter(requests), asyncio.create_task(stopped.wait())
    try:
        while True:
            coming = asyncio.ensure_future(anext(incoming, None))
            coming.add_done_callback(_seen)  # the call may end while it is on its way
            await asyncio.wait((coming, stop), return_when=asyncio.FIRST_COMPLETED)
            if not coming.done():
                coming.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await coming
                return
            if (request := coming.result()) is None:
                return
            yield request
    finally:
        stop.cancel()


def _seen(request: asyncio.Future[Any]) -> None:
    if not request.cancelled():
        request.exception()
