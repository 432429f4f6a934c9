"""The standard health service of gRPC."""

from __future__ import annotations

from typing import Any

from grpc_health.v1 import health_pb2

from minimq_common.wire.dispatcher import Dispatcher

_Status = health_pb2.HealthCheckResponse
_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]


class HealthService:
    """The health of one server, on its event loop. NOT_SERVING at first, after `failing`, and after `stopping`.

    It is the same for every service, so `Check`, which needs no key, does not read its request.
    """

    def __init__(self, dispatcher: Dispatcher) -> None:
        self._status: int = _Status.NOT_SERVING
        self._is_last = False
        dispatcher.add(_HEALTH, {"Check": self.check})

    def serving(self) -> None:
        if not self._is_last:
            self._status = _Status.SERVING

    def failing(self) -> None:
        """Report NOT_SERVING until `serving` is called again."""
        self._status = _Status.NOT_SERVING

    def stopping(self) -> None:
        """Report NOT_SERVING from now on. Idempotent."""
        self._is_last = True
        self.failing()

    async def check(self, request: health_pb2.HealthCheckRequest, context: Any) -> _Status:
        return _Status(status=self._status)
