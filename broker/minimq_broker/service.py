"""The gRPC service of the broker: maps each call to the service of its noun."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

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


class _Term:
    """The sessions of one role, with the calls about them. The engine has the groups and leases of the role."""

    def __init__(
        self, engine: Engine, options: BrokerOptions, broker_name: str, servings: Mapping[str, Serving]
    ) -> None:
        expiry = GroupExpiry(math.ceil(options.group_expiry_s * 1000), engine.clock.now_ms())
        starts = InitialOffsets(engine)
        self.session = SessionService(engine, options, broker_name)
        self.group_deletion = GroupDeletion(engine, self.session, expiry, options.session_timeout_s)
        groups = GroupService(engine, self.session.leases, expiry)
        self.handlers: dict[str, Serve] = {
            "Session": as_caller(self.session.serve),
            "BeginGroup": answering(starts.begin),
            "DescribeGroup": answering(groups.describe),
            "ListGroups": answering(groups.list_groups),
            "ResetOffsets": answering(groups.reset),
            "DeleteGroup": answering(self.group_deletion.delete),
        }
        begun = [(each.service, each.began(Role(starts))) for each in servings.values()]
        self.of_features = {service: handlers for service, handlers in begun if service}


class BrokerService:
    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        options: BrokerOptions,
        replication: Replication,
        servings: Mapping[str, Serving],
    ) -> None:
        self._new_term = partial(_Term, engine, options, identity.broker_name, servings)
        self._term = self._new_term()
        self.append = AppendService(engine, servings)
        topics = TopicService(engine, options.auto_create_queues)
        offsets = OffsetService(engine)
        atomic = AtomicAppendService(engine, offsets, [each.progress_of for each in servings.values()])
        status = StatusService(engine, identity, replication)
        self._handlers: dict[str, Serve] = {
            "Append": self.append.serve,
            "AppendAtomic": atomic.serve,
            "Pull": PullService(engine).serve,
            "CreateTopic": answering(topics.create),
            "UpdateTopic": answering(topics.update),
            "DeleteTopic": answering(topics.delete),
            "DescribeTopic": answering(topics.describe),
            "CommitOffsets": answering(offsets.commit),
            "GetCommitted": answering(offsets.committed),
            "GetStatus": answering(status.describe),
            "Probe": answering(status.probe),
            "SetPermission": answering(status.set_permission),
            "Promote": answering(status.promote),
        }

    @property
    def group_deletion(self) -> GroupDeletion:
        return self._term.group_deletion

    async def delete_idle_groups(self) -> None:
        """See `GroupDeletion.look`."""
        await self._term.group_deletion.look()

    def begin(self) -> None:
        """Start new sessions, because the engine has the groups and leases of a new role."""
        self._term.session.retire()
        self._term = self._new_term()

    def topics_changed(self) -> None:
        """Repeat requests of members for queues that may exist now."""
        self._term.session.leases.retry_wishes()

    def handlers(self) -> Mapping[ServiceDescriptor, Mapping[str, Serve]]:
        """Return the handlers by service and call; valid until the next `begin`."""
        return {_BROKER: {**self._handlers, **self._term.handlers}, **self._term.of_features}
