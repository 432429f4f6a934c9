"""The standard health service of gRPC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpc_health.v1 import health_pb2

from minimq_common.wire.dispatcher import Dispatcher

_Status = health_pb2.HealthCheckResponse
_HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]


class HealthService:
    """The health of one server, on its event loop. NOT_SERVING before `serving`, after `stopping`, or if it has failed.

    It is the same for every service, so `Check`, which needs no key, does not read its request.
    """

    def __init__(self, dispatcher: Dispatcher, has_failed: Callable[[], bool] = lambda: False) -> None:
        self._is_serving, self._has_failed = False, has_failed
        dispatcher.add(_HEALTH, {"Check": self.check})

    def serving(self) -> None:
        self._is_serving = True

    def stopping(self) -> None:
        self._is_serving = False

    async def check(self, request: health_pb2.HealthCheckRequest, context: Any) -> _Status:
        is_well = self._is_serving and not self._has_failed()
        return _Status(status=_Status.SERVING if is_well else _Status.NOT_SERVING)
