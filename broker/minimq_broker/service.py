"""The gRPC service of the broker: maps each call to the service of its noun."""

from __future__ import annotations

import math
from collections.abc import Mapping

from google.protobuf.descriptor import ServiceDescriptor

from minimq_broker.assembly import BrokerOptions
from minimq_broker.calls.administration import answering, as_caller
from minimq_broker.calls.append import AppendService
from minimq_broker.calls.atomic_append import AtomicAppendService
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.pull import PullService
from minimq_broker.calls.status import Identity, Replication, StatusService
from minimq_broker.calls.topics import TopicService
from minimq_broker.features.feature import Role, Serving
from minimq_broker.groups.group_deletion import GroupDeletion
from minimq_broker.groups.group_service import GroupService
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.offsets import InitialOffsets, OffsetService
from minimq_broker.groups.session import SessionService
from minimq_common.wire.dispatcher import Serve
from minimq_proto.v1 import broker_pb2

_BROKER = broker_pb2.DESCRIPTOR.services_by_name["Broker"]


class BrokerService:
    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        options: BrokerOptions,
        replication: Replication,
        servings: Mapping[str, Serving],
    ) -> None:
        self._engine = engine
        self._servings = servings
        self._options = options
        self._broker_name = identity.broker_name
        self._append = AppendService(engine, servings)
        self._pull = PullService(engine)
        self._begin_sessions()
        self._topics = TopicService(engine, options.auto_create_queues)
        self._offsets = OffsetService(engine)
        self._atomic = AtomicAppendService(engine, self._offsets, [each.progress_of for each in servings.values()])
        self._status = StatusService(engine, identity, replication)

    def begin(self) -> None:
        """Start new sessions, because the engine has the groups and leases of a new role."""
        self._session.retire()
        self._begin_sessions()

    def still_syncing(self, seconds: float) -> None:
        """Notify waiting producers that the disk has not finished a sync for that long."""
        self._append.still_syncing(seconds)

    def topics_changed(self) -> None:
        """Repeat requests of members for queues that may exist now."""
        self._session.leases.retry_wishes()

    def _begin_sessions(self) -> None:
        options = self._options
        expiry = GroupExpiry(math.ceil(options.group_expiry_s * 1000), self._engine.clock.now_ms())
        self._session = SessionService(self._engine, options, self._broker_name)
        self._starts = InitialOffsets(self._engine)
        self._groups = GroupService(self._engine, self._session.leases, expiry)
        self.group_deletion = GroupDeletion(self._engine, self._session, expiry, options.session_timeout_s)
        role = Role(self._starts)
        begun = [(each.service, each.began(role)) for each in self._servings.values()]
        self._of_features = {service: handlers for service, handlers in begun if service}

    def handlers(self) -> Mapping[ServiceDescriptor, Mapping[str, Serve]]:
        """Return the handlers by service and call; valid until the next `begin`."""
        return {_BROKER: self._of_kernel(), **self._of_features}

    def _of_kernel(self) -> dict[str, Serve]:
        return {
            "Append": self._append.serve,
            "AppendAtomic": self._atomic.serve,
            "Pull": self._pull.serve,
            "Session": as_caller(self._session.serve),
            "CreateTopic": answering(self._topics.create),
            "UpdateTopic": answering(self._topics.update),
            "DeleteTopic": answering(self._topics.delete),
            "DescribeTopic": answering(self._topics.describe),
            "CommitOffsets": answering(self._offsets.commit),
            "GetCommitted": answering(self._offsets.committed),
            "BeginGroup": answering(self._starts.begin),
            "DescribeGroup": answering(self._groups.describe),
            "ListGroups": answering(self._groups.list_groups),
            "ResetOffsets": answering(self._groups.reset),
            "DeleteGroup": answering(self.group_deletion.delete),
            "GetStatus": answering(self._status.describe),
            "Probe": answering(self._status.probe),
            "SetPermission": answering(self._status.set_permission),
            "Promote": answering(self._status.promote),
        }
