"""The name server: owns the route table, the optional controller, the timers and the gRPC server."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack

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
        self._expiry = PeriodicTask("expiry", self._service.registrations.expire, scan_interval_s, log)
        self._running = AsyncExitStack()
        self._control: AccessControl | None = None
        #: HOST:PORT at which it serves, with the actual port once `start` has returned.
        self.address = options.listen
        #: HOST:PORT that serves its metrics, once `start` has returned; empty without metrics.
        self.metrics_address = ""

    async def start(self) -> None:
        """Start serving; returns once requests are served."""
        async with AsyncExitStack() as ends:
            await self._start(ends)
            self._running = ends.pop_all()

    async def _start(self, ends: AsyncExitStack) -> None:
        """Start all parts; `ends` gets what stops them, in reverse order."""
        options = self._options
        secrets = secrets_of(options.secrets, options.client_certificates)
        self._control = control = control_of(secrets)
        dispatcher = Dispatcher(CallLimits(first_request_s=_FIRST_REQUEST_S), control=control)
        dispatcher.add(_NAMESERVER, methods_of(_NAMESERVER, self._service))
        controller = None
        if options.controller_dir is not None:
            note_conflict = self._service.registrations.note_conflict
            controller = ControllerService(options.controller_dir, options.term_lease_s, note_conflict)
            ends.push_async_callback(controller.close)
            dispatcher.add(_CONTROLLER, methods_of(_CONTROLLER, controller))
        health = HealthService(dispatcher)
        connections = ("grpc.max_allowed_incoming_connections", connections_within_limit(MAX_CONNECTIONS))
        server = grpc.aio.server(options=(*_SERVER_OPTIONS.items(), connections))
        server.add_generic_rpc_handlers((dispatcher,))
        self.address = await rpc.bind(server, options.listen, secrets)
        ends.push_async_callback(server.stop, _DRAIN_S)
        ends.callback(self._service.end_streams)
        await server.start()
        if controller is not None:
            ends.push_async_callback(controller.stop)
            controller.start()
        ends.push_async_callback(self._expiry.stop)
        if options.start_grace_s:
            settling = asyncio.get_running_loop().call_later(options.start_grace_s, self._settle)
            ends.callback(settling.cancel)
        else:
            self._service.settle()
        self._expiry.start()
        if control is not None:
            ends.push_async_callback(control.stop)
            control.start()
        if options.metrics:
            await self._start_metrics(ends, controller, secrets)
        ends.callback(health.stopping)
        health.serving()

    async def _start_metrics(
        self, ends: AsyncExitStack, controller: ControllerService | None, secrets: ServerSecrets | None
    ) -> None:
        # Imported late: takes a tenth of the start of a name server, and only metrics need it.
        from minimq_common.serving.metrics import MetricsServer
        from minimq_nameserver.metrics import PREFIX, NameServerMetrics

        metrics = MetricsServer(NameServerMetrics(self._service, controller).collect, PREFIX)
        ends.push_async_callback(metrics.stop)
        self.metrics_address = await metrics.start(self._options.metrics, secrets, self._control)

    async def failure(self) -> None:
        """Wait forever: a name server that has started does not fail."""
        await asyncio.Event().wait()

    async def stop(self) -> None:
        """Stop serving: ends streams at once and answers running calls."""
        await self._running.aclose()

    def _settle(self) -> None:
        self._service.settle()
        log.info("settled after_s=%s", self._options.start_grace_s)
