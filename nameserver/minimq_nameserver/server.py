"""The name server: owns the route table, the optional controller, the timers and the gRPC server."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

import grpc.aio

from minimq_common.security.access_control import AccessControl, control_of
from minimq_common.security.server_secrets import ServerSecrets, secrets_of
from minimq_common.serving.open_files import connections_within_limit
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import CallLimits, Dispatcher, methods_of
from minimq_common.wire.health_service import HealthService
from minimq_nameserver.bounds import MAX_CONNECTIONS, MAX_STREAMS_OF_A_CONNECTION, MAX_TABLE_BYTES
from minimq_nameserver.controller.service import ControllerService
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.route_table import RouteTable
from minimq_nameserver.service import NameServerService
from minimq_proto.v1 import controller_pb2, nameserver_pb2

if TYPE_CHECKING:
    from minimq_common.serving.metrics import MetricsServer

log = logging.getLogger(__name__)

#: Timeout of running calls when the name server stops.
_DRAIN_S = 1.0

#: Time between two searches for silent brokers: short beside `--expire-after`.
_SCAN_INTERVAL_S = 5.0

#: Timeout of the first request of a stream.
_FIRST_REQUEST_S = 5.0

_NAMESERVER = nameserver_pb2.DESCRIPTOR.services_by_name["NameServer"]
_CONTROLLER = controller_pb2.DESCRIPTOR.services_by_name["Controller"]

# A dict, so that values override the defaults: gRPC uses the first of two values for one key.
_SERVER_OPTIONS = {
    **dict(rpc.SERVER_OPTIONS),
    # Clients ping every second, which is how they notice that a name server hangs.
    "grpc.http2.min_ping_interval_without_data_ms": 500,
    "grpc.max_receive_message_length": MAX_TABLE_BYTES,
    # Keeps the received part of an unread request within the initial stream window, 64 KiB. Bandwidth probes would grow
    # the window to the size of the largest request.
    "grpc.http2.bdp_probe": 0,
    "grpc.max_concurrent_streams": MAX_STREAMS_OF_A_CONNECTION,
}


class NameServer:
    """A registry of routes, kept in memory. Name servers do not know each other."""

    def __init__(self, options: NameServerOptions, scan_interval_s: float = _SCAN_INTERVAL_S) -> None:
        self._options = options
        table = RouteTable(options.expire_after_s, options.remember_offline_s)
        self._service = NameServerService(table, time.monotonic)
        self._address = options.listen
        self._controller: ControllerService | None = None
        self._server: grpc.aio.Server | None = None
        self._expiry = PeriodicTask("expiry", self._service.registrations.expire, scan_interval_s, log)
        self._settling: asyncio.TimerHandle | None = None
        self._health: HealthService | None = None
        self._metrics: MetricsServer | None = None
        self._metrics_address = ""
        self._control: AccessControl | None = None

    @property
    def address(self) -> str:
        """HOST:PORT at which it serves, with the actual port once `start` has returned."""
        return self._address

    @property
    def metrics_address(self) -> str:
        """HOST:PORT that serves its metrics, once `start` has returned; empty without metrics."""
        return self._metrics_address

    async def start(self) -> None:
        """Start serving; returns once requests are served."""
        secrets = secrets_of(self._options.secrets, self._options.client_certificates)
        self._control = control_of(secrets)
        if self._control is not None:
            self._control.start()
        connections = ("grpc.max_allowed_incoming_connections", connections_within_limit(MAX_CONNECTIONS))
        self._server = grpc.aio.server(options=(*_SERVER_OPTIONS.items(), connections))
        dispatcher = Dispatcher(CallLimits(first_request_s=_FIRST_REQUEST_S), control=self._control)
        dispatcher.add(_NAMESERVER, methods_of(_NAMESERVER, self._service))
        if self._options.controller_dir is not None:
            self._controller = ControllerService(
                self._options.controller_dir, self._options.term_lease_s, self._service.registrations.note_conflict
            )
            dispatcher.add(_CONTROLLER, methods_of(_CONTROLLER, self._controller))
        self._health = HealthService(dispatcher)
        self._server.add_generic_rpc_handlers((dispatcher,))
        self._address = await rpc.bind(self._server, self._options.listen, secrets)
        await self._server.start()
        if self._controller is not None:
            self._controller.start()
        if self._options.start_grace_s:
            self._settling = asyncio.get_running_loop().call_later(self._options.start_grace_s, self._settle)
        else:
            self._service.settle()
        self._expiry.start()
        if self._options.metrics:
            await self._start_metrics(secrets)
        self._health.serving()

    async def failure(self) -> None:
        """Wait forever: a name server that has started does not fail."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop serving: ends streams at once and answers running calls."""
        if self._health is not None:
            self._health.stopping()
        if self._metrics is not None:
            await self._metrics.stop()
        if self._control is not None:
            await self._control.stop()
        if self._settling is not None:
            self._settling.cancel()
        await self._expiry.stop()
        controller, self._controller = self._controller, None
        if controller is not None:
            await controller.stop()
        server, self._server = self._server, None
        if server is not None:
            self._service.end_streams()
            await server.stop(_DRAIN_S)
        if controller is not None:
            await controller.close()

    async def _start_metrics(self, secrets: ServerSecrets | None) -> None:
        # Imported late: takes a tenth of the start of a name server, and only metrics need it.
        from minimq_common.serving.metrics import MetricsServer
        from minimq_nameserver.metrics import PREFIX, NameServerMetrics

        own = NameServerMetrics(self._service, self._controller)
        self._metrics = MetricsServer(own.collect, PREFIX)
        self._metrics_address = await self._metrics.start(self._options.metrics, secrets, self._control)

    def _settle(self) -> None:
        self._service.settle()
        log.info("settled after_s=%s", self._options.start_grace_s)
