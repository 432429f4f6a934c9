"""The broker: owns the engine, the registration at name servers, the background tasks and the gRPC server."""

from __future__ import annotations

import asyncio
import logging
import math
import shutil
from collections import defaultdict
from contextlib import AsyncExitStack, suppress
from typing import TYPE_CHECKING

import grpc.aio

from minimq_broker.assembly import BrokerOptions
from minimq_broker.backup.copying import Snapshots
from minimq_broker.backup.scrub import Scrub
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.limits import MAX_CONNECTIONS, MAX_REQUEST_OVERHEAD, MAX_STREAMS, Limits
from minimq_broker.calls.slow_disk import SlowDisk
from minimq_broker.calls.status import Identity
from minimq_broker.commit.store import StoreOptions
from minimq_broker.features.registry import FEATURES
from minimq_broker.log.clock import now_ms
from minimq_broker.log.data_dir import Owner
from minimq_broker.log.disk_levels import Watermarks
from minimq_broker.log.lmdb_file import DamagedFile, unreadable
from minimq_broker.log.segment import FILES_PER_SEGMENT
from minimq_broker.registration import Registration
from minimq_broker.replication.controller import parse
from minimq_broker.replication.in_sync import InSyncLimits
from minimq_broker.replication.roles import RoleKeeper, new_run
from minimq_broker.replication.service import ReplicationService, ReplicationView
from minimq_broker.service import BrokerService
from minimq_common.errors import BrokerConflict, CorruptEntry, MinimqError, SystemBusy
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_common.security.access_control import AccessControl, control_of
from minimq_common.security.server_secrets import ServerSecrets, secrets_of, security_of, security_of_folder
from minimq_common.serving import daemon
from minimq_common.serving.open_files import connections_within_limit
from minimq_common.serving.periodic import PeriodicTask
from minimq_common.wire import rpc
from minimq_common.wire.dispatcher import FIRST_REQUEST_S, CallLimits, Dispatcher, methods_of
from minimq_common.wire.health_service import HealthService
from minimq_proto.v1 import nameserver_pb2, replication_pb2

if TYPE_CHECKING:
    from minimq_broker.metrics.collector import BrokerMetrics

log = logging.getLogger(__name__)

#: Timeout of running calls when the broker stops: enough for a commit in progress.
_DRAIN_S = 5.0

#: Maximum time of a stop except for the disk, even if replicas and name servers hang. By default containers are killed
#: after 10 seconds.
_STOP_S = 8.0

_CHECK_INTERVAL_S = 0.5

#: Segments in addition to those that a full disk holds: the active one, and those that are being rewritten.
_SPARE_SEGMENTS = 8

#: The remedy if the store of a replica cannot be opened.
_REMEDY = (
    "if another replica is the master now (minimq cluster status), rebuild this one from it: minimq-broker rebuild "
    "--source MASTER_HOST:PORT {}"
)
_REPLICATION = replication_pb2.DESCRIPTOR.services_by_name["Replication"]


class Broker:
    """One broker. Lives on the event loop on which `start` was called. Can be started once."""

    def __init__(self, options: BrokerOptions, limits: Limits | None = None) -> None:
        self._options = options
        self._limits = limits or Limits(options.max_body_bytes, options.max_batch_bytes)
        #: HOST:PORT at which it serves, with the actual port once `start` has returned.
        self.address = options.listen
        self._run = new_run()
        self._engine: Engine | None = None
        self._dispatcher: Dispatcher | None = None
        self._registration: Registration | None = None
        #: HOST:PORT that serves its metrics, once `start` has returned; empty without metrics.
        self.metrics_address = ""
        self._service: BrokerService | None = None
        self._roles: RoleKeeper | None = None
        #: Waits for a name server before this replica reports to its controller.
        self._joining: asyncio.Task[None] | None = None
        self._secrets: ServerSecrets | None = None
        self._control: AccessControl | None = None
        #: Stops what was started, in reverse order. `_until` is the deadline, in loop time.
        self._ends, self._until = AsyncExitStack(), math.inf

    async def start(self) -> None:
        """Open the store, serve, then register, so that clients never find a broker that is not ready."""
        options = self._options
        self._secrets = secrets_of(options.secrets, options.client_certificates)
        engine = self._engine = self._open_engine(options)
        self._ends.push_async_callback(self._close_engine, engine)
        identity = Identity(options.cluster, options.name, options.broker_id, daemon.version(), now_ms())
        server = grpc.aio.server(
            options=rpc.server_options(
                max_receive_message_length=options.max_batch_bytes + MAX_REQUEST_OVERHEAD,
                max_allowed_incoming_connections=connections_within_limit(MAX_CONNECTIONS, _stored_files(options)),
            )
        )
        self.address = await rpc.bind(server, options.listen, self._secrets)
        self._roles = self._make_roles(engine, options) if options.controller else None
        snapshots = Snapshots(engine.store, engine.unsent)
        engine.log_readers.append(snapshots.lowest_needed)
        if self._roles is not None:
            engine.log_readers.append(self._roles.lowest_needed)
            engine.log_listeners.append(self._roles.log_grew)
        self._start(Scrub(engine.store, engine.counters, options.verify_interval_s))
        replication_view = ReplicationView(engine.store, self._roles)
        servings = {name: each.serve(engine, options) for name, each in FEATURES.items()}
        self._start(*(task for each in servings.values() for task in each.tasks))
        service = self._service = BrokerService(engine, identity, options, replication_view, servings)
        engine.topic_listeners.append(service.topics_changed)
        self._start(SlowDisk(engine.store, service.append.still_syncing))
        if options.group_expiry_s:
            look_every_s = service.group_deletion.look_every_s
            self._start(PeriodicTask("idle groups", service.delete_idle_groups, look_every_s, log))
        replication = ReplicationService(options.cluster, options.name, self._roles, snapshots)
        dispatcher = self._add_services(server, engine, service, replication)
        health = HealthService(dispatcher, lambda: engine.store.status.has_failed)
        registration = Registration(
            options.nameservers,
            self._describe,
            lambda: engine.versions.next,
            nameserver_pb2.RegisterRequest(
                check_only=True,
                broker_name=options.name,
                replica_id=options.broker_id,
                address=options.advertise or self.address,
                run=self._run,
            ),
            security=security_of(self._secrets),
        )
        is_placed = await registration.check_place()
        await server.start()
        self._register(engine, registration, is_placed=is_placed)
        if options.metrics:
            # Imported late: takes a tenth of the start of a broker, and only metrics need it.
            from minimq_broker.metrics.collector import BrokerMetrics

            await self._start_metrics(
                BrokerMetrics(engine, identity, replication_view, dispatcher.streams, [*servings.values()])
            )
        health.serving()
        self._ends.callback(health.stopping)

    async def _start_metrics(self, metrics: BrokerMetrics) -> None:
        from minimq_broker.metrics.collector import PREFIX
        from minimq_common.serving.metrics import MetricsServer

        shown = MetricsServer(metrics.collect, PREFIX)
        self._ends.push_async_callback(shown.stop)
        self.metrics_address = await shown.start(self._options.metrics, self._secrets, self._control)

    def _add_services(
        self, server: grpc.aio.Server, engine: Engine, service: BrokerService, replication: ReplicationService
    ) -> Dispatcher:
        self._control = control_of(self._secrets)
        if self._control is not None:
            self._start(self._control)

        def note(method: str, error: MinimqError) -> None:
            if isinstance(error, SystemBusy) and error.limit == "streams":
                engine.counters.streams_rejected[method.lower()] += 1
            engine.rejections.note(error)

        limits = CallLimits(max_streams=MAX_STREAMS, first_request_s=FIRST_REQUEST_S)
        dispatcher = self._dispatcher = Dispatcher(limits, control=self._control, translate=unreadable, note=note)
        dispatcher.add_all(service.handlers())
        dispatcher.add(_REPLICATION, methods_of(_REPLICATION, replication))
        server.add_generic_rpc_handlers((dispatcher,))
        self._ends.push_async_callback(self._end_calls, server, engine, dispatcher)
        return dispatcher

    def _start(self, *tasks: PeriodicTask) -> None:
        for task in tasks:
            task.start()
            self._ends.push_async_callback(task.stop)

    def _open_engine(self, options: BrokerOptions) -> Engine:
        try:
            return Engine(
                options.data_dir,
                _store_options(options),
                self._limits,
                recovery_s=options.session_grace_s,
                alone=not options.controller,
                rejection=self._rejection if options.controller else None,
            )
        except (CorruptEntry, DamagedFile) as error:
            if options.controller:
                raise type(error)(f"{error.message}; {_REMEDY.format(options.data_dir)}") from error
            raise

    async def stop(self) -> None:
        """Unregister, finish running calls, write submitted jobs, and close the store. Idempotent."""
        self._until = asyncio.get_running_loop().time() + _STOP_S
        await self._ends.aclose()

    async def failure(self) -> None:
        """Wait until this broker may not serve any more, and raise the reason."""
        assert self._registration is not None  # after `start`
        raise await asyncio.shield(self._registration.rejected)

    def _register(self, engine: Engine, registration: Registration, *, is_placed: bool) -> None:
        self._registration = registration
        engine.topic_listeners.append(registration.changed)
        self._ends.push_async_callback(self._unregister, registration)
        if self._roles is None:
            registration.start()
        else:
            joining = self._join_replicas(self._roles, registration, is_placed=is_placed)
            self._joining = asyncio.create_task(joining, name="broker-join")

    async def _join_replicas(self, roles: RoleKeeper, registration: Registration, *, is_placed: bool) -> None:
        # Not before: because of a report of its copy, the controller would fence the replica that has the place.
        with suppress(BrokerConflict):  # `failure` raises it
            while not is_placed:
                await asyncio.sleep(_CHECK_INTERVAL_S)
                is_placed = await registration.check_place()
            roles.start()  # registers once the broker has a role

    async def _close_engine(self, engine: Engine) -> None:
        self._engine = None
        await asyncio.to_thread(engine.close)  # waits for the disk

    async def _unregister(self, registration: Registration) -> None:
        self._registration = None
        if self._joining is not None:
            self._joining.cancel()
        await registration.stop()

    async def _end_calls(self, server: grpc.aio.Server, engine: Engine, dispatcher: Dispatcher) -> None:
        engine.streams.end()
        if self._roles is not None:
            await engine.writes.settle(_DRAIN_S)  # acknowledges accepted jobs while this broker still leads
            await self._roles.stop()
        await dispatcher.drain(_left(self._until))
        await server.stop(_left(self._until))

    def _make_roles(self, engine: Engine, options: BrokerOptions) -> RoleKeeper:
        own = ReplicaReport(
            cluster=options.cluster,
            broker_name=options.name,
            replica_id=options.broker_id,
            run=new_run(),
            address=options.advertise or self.address,
            founds=options.role != "slave",
            sync=options.role == "sync-master",
            min_in_sync=options.min_in_sync,
        )
        security = security_of(self._secrets)
        etcd = security_of_folder(options.etcd_secrets)
        controller = parse(options.controller, term_lease_s=options.term_lease_s, security=security, etcd_security=etcd)
        max_wait = InSyncLimits(lag_s=options.replica_lag_s)
        return RoleKeeper(engine, own, controller, max_wait, self._role_changed, security)

    def _role_changed(self) -> None:
        if self._service is not None and self._dispatcher is not None:
            self._service.begin()
            self._dispatcher.add_all(self._service.handlers())
        if self._registration is not None:
            self._registration.start()
            self._registration.changed()

    def _rejection(self, *, to_sender: bool) -> MinimqError | None:
        return None if self._roles is None else self._roles.rejection(to_sender=to_sender)

    def _describe(self) -> nameserver_pb2.RegisterRequest:
        assert self._engine is not None  # the engine closes after the registration has ended
        data_version, state = self._engine.versions.next, self._engine.store.state
        alike = defaultdict[tuple[int, ...], list[str]](list)
        for topic in state.topics.copy().values():
            alike[topic.read_queues, topic.write_queues, topic.permission, topic.key_queues].append(topic.name)
        return nameserver_pb2.RegisterRequest(
            cluster=self._options.cluster,
            broker_name=self._options.name,
            broker_id=self._options.broker_id if self._roles is None else self._roles.shown_id,
            replica_id=self._options.broker_id,
            address=self._options.advertise or self.address,
            run=self._run,
            data_version=data_version,
            permission=state.permission,
            groups=[
                nameserver_pb2.TopicGroup(
                    topics=names, read_queues=reads, write_queues=writes, permission=permission, key_queues=keys
                )
                for (reads, writes, permission, keys), names in alike.items()
            ],
        )


def _left(until: float) -> float:
    return min(_DRAIN_S, max(until - asyncio.get_running_loop().time(), 0.0))


def _stored_files(options: BrokerOptions) -> int:
    used_bytes = shutil.disk_usage(options.data_dir).total
    if options.max_log_bytes:
        used_bytes = min(used_bytes, options.max_log_bytes)
    return FILES_PER_SEGMENT * (used_bytes // options.segment_bytes + _SPARE_SEGMENTS)


def _store_options(options: BrokerOptions) -> StoreOptions:
    return StoreOptions(
        segment_bytes=options.segment_bytes,
        checkpoint_interval_s=options.upkeep_interval_s,
        watermarks=Watermarks(delete_early=options.disk_delete_early, reject=options.disk_reject),
        owner=Owner(cluster=options.cluster, name=options.name, id=options.broker_id),
    )
