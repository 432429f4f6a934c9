"""The standard health service of gRPC."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from grpc_health.v1 import health_pb2

from minimq_common.errors import SystemBusy
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import Dispatcher, methods_of

_Status = health_pb2.HealthCheckResponse
_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]

#: Streams that watch the health of one server. Each takes about 20 KB.
MAX_WATCHES = 1_000


class HealthService:
    """The health of one server, on its event loop.

    It is NOT_SERVING at first, after `failing`, and after `stopping`. It is the same for every service and for the
    server as a whole (the empty service name). `Check`, which needs no key, does not read which service its request
    names.
    """

    def __init__(self, dispatcher: Dispatcher, services: Sequence[str]) -> None:
        self._services = frozenset(("", *services))
        self._status: int = _Status.NOT_SERVING
        self._is_last = False
        self._changed = asyncio.Event()
        self._watches = 0
        dispatcher.add(_HEALTH, methods_of(_HEALTH, self))

    def serving(self) -> None:
        self._set(_Status.SERVING)

    def failing(self) -> None:
        """Report NOT_SERVING until `serving` is called again."""
        self._set(_Status.NOT_SERVING)

    def stopping(self) -> None:
        """Report NOT_SERVING for the last time, and end the streams that watch it. Idempotent."""
        self._is_last = True
        self._set(_Status.NOT_SERVING)

    def _set(self, status: int) -> None:
        self._status = status
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    async def Check(self, request: health_pb2.HealthCheckRequest, context: Any) -> _Status:
        return _Status(status=self._status)

    async def List(self, request: Any, context: Any) -> Any:
        library: Any = health_pb2  # its type stubs lack `List`; with older releases nobody calls this method
        return library.HealthListResponse(
            statuses={service: _Status(status=self._status) for service in self._services}
        )

    async def Watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        if self._watches >= MAX_WATCHES:
            text = f"{MAX_WATCHES} clients watch the health of this server, which is the limit: use Check instead"
            raise SystemBusy(text)
        self._watches += 1
        try:
            await self._watch(request, context)
        finally:
            self._watches -= 1

    async def _watch(self, request: health_pb2.HealthCheckRequest, context: Any) -> None:
        told = None
        while True:
            changed, is_last = self._changed, self._is_last
            status = self._status if request.service in self._services else _Status.SERVICE_UNKNOWN
            if status != told:
                await rpc.write(context, _Status(status=status))
            if is_last:
                return
            told = status
            await changed.wait()
