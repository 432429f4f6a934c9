"""The gRPC service of the broker: maps each call to the service of its noun."""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable
from typing import Any

from minimq_broker.calls.administration import called_by
from minimq_broker.calls.append import AppendService
from minimq_broker.calls.atomic_append import AtomicAppendService
from minimq_broker.calls.engine import Engine
from minimq_broker.calls.pull import PullService
from minimq_broker.calls.status import Identity, Replication, StatusService
from minimq_broker.calls.topics import TopicService
from minimq_broker.features.delayed.delaying import DelayService
from minimq_broker.features.requests.event_service import EventService, ReplyService
from minimq_broker.features.search.finding import FindService, TraceService
from minimq_broker.features.staged.half_message_service import HalfMessageService
from minimq_broker.features.staged.transaction_service import TransactionService
from minimq_broker.features.work_queues.work_queue_service import WorkQueueService
from minimq_broker.groups.group_deletion import GroupDeletion
from minimq_broker.groups.group_service import GroupService
from minimq_broker.groups.idle_groups import GroupExpiry
from minimq_broker.groups.offsets import InitialOffsets, OffsetService
from minimq_broker.groups.session import SessionService
from minimq_broker.options import BrokerOptions
from minimq_common.wire.dispatcher import Serve


class BrokerService:
    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        options: BrokerOptions,
        replication: Replication,
        transactions: TransactionService,
    ) -> None:
        self._engine = engine
        self._options = options
        self._broker_name = identity.broker_name
        self._append = AppendService(engine)
        self._pull = PullService(engine)
        self._find = FindService(engine)
        self._trace = TraceService(engine)
        self._begin_sessions()
        self._topics = TopicService(engine, options.auto_create_queues)
        self._transactions = transactions
        self.halves = HalfMessageService(engine, options, lambda: self._attending.attendants, transactions.wake)
        self._delays = DelayService(engine)
        self._offsets = OffsetService(engine)
        self._atomic = AtomicAppendService(engine, self._offsets, self.halves, lambda: self._popping)
        self._status = StatusService(engine, identity, replication)

    def begin(self) -> None:
        """Start new sessions, because the engine has the groups and leases of a new role."""
        self._session.retire()
        self._popping.retire()
        self._attending.retire()
        self._begin_sessions()

    def still_syncing(self, seconds: float) -> None:
        """Notify waiting producers that the disk has not finished a sync for that long."""
        self._append.still_syncing(seconds)

    def topics_changed(self) -> None:
        """Repeat requests of members for queues that may exist now."""
        self._session.leases.retry_wishes()

    def _begin_sessions(self) -> None:
        options = self._options
        expiry = GroupExpiry(math.ceil(options.group_expiry_s * 1000), self._engine.deletion_ms())
        self._session = SessionService(self._engine, options, self._broker_name)
        self._starts = InitialOffsets(self._engine)
        self._popping = WorkQueueService(self._engine, self._starts, options.session_grace_s)
        self._attending = EventService(self._engine)
        self._replying = ReplyService(self._engine, self._attending.attendants)
        self._groups = GroupService(self._engine, self._session.leases, expiry)
        self.group_deletion = GroupDeletion(self._engine, self._session, expiry, options.session_timeout_s)

    def handlers(self) -> dict[str, Serve]:
        """Return the handlers by call; valid until the next `begin`."""
        return {
            "Append": self._append.serve,
            "AppendAtomic": self._atomic.serve,
            "Pull": self._pull.serve,
            "Pop": self._popping.serve,
            "Session": _as_caller(self._session.serve),
            "Events": self._attending.serve,
            "Reply": self._replying.serve,
            "Find": _answer(self._find.find),
            "TraceMessage": _answer(self._trace.trace),
            "CreateTopic": _answer(self._topics.create),
            "UpdateTopic": _answer(self._topics.update),
            "DeleteTopic": _answer(self._topics.delete),
            "DescribeTopic": _answer(self._topics.describe),
            "CommitTransaction": _answer(self._transactions.commit),
            "Recall": _answer(self._delays.recall),
            "ListDelayed": _answer(self._delays.list_delayed),
            "ListHalves": _answer(self.halves.list_open),
            "CommitOffsets": _answer(self._offsets.commit),
            "GetCommitted": _answer(self._offsets.committed),
            "BeginGroup": _answer(self._starts.begin),
            "DescribeGroup": _answer(self._groups.describe),
            "ListGroups": _answer(self._groups.list_groups),
            "ResetOffsets": _answer(self._groups.reset),
            "DeleteGroup": _answer(self.group_deletion.delete),
            "GetStatus": _answer(self._status.describe),
            "Probe": _answer(self._status.probe),
            "SetPermission": _answer(self._status.set_permission),
            "Promote": _answer(self._status.promote),
        }


def _as_caller(serve: Serve) -> Serve:
    async def serve_as_caller(request: Any, context: Any) -> Any:
        called_by(context.peer(), getattr(request, "client_id", ""))
        return await serve(request, context)

    return serve_as_caller


def _answer(call: Callable[[Any], Awaitable[Any]]) -> Serve:
    return _as_caller(lambda request, _: call(request))
