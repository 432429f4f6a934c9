"""The gRPC service of the broker: each call goes to the service of its noun."""

# ruff: noqa: D102, ANN401 - names, meaning and context are those of the .proto file and of its stubs

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from typing import Any, TypeVar

from minimq_broker.core.idle_groups import GroupExpiry
from minimq_broker.services.access import AccessService
from minimq_broker.services.administration import called_by
from minimq_broker.services.append import AppendService
from minimq_broker.services.assignment import AssignmentService
from minimq_broker.services.atomic_append import AtomicAppendService
from minimq_broker.services.attending import AttendService
from minimq_broker.services.delaying import DelayService
from minimq_broker.services.engine import Engine
from minimq_broker.services.finding import FindService
from minimq_broker.services.group_deletion import GroupDeletion
from minimq_broker.services.groups import GroupService
from minimq_broker.services.half_checks import HalfChecks
from minimq_broker.services.halves import HalfOptions, HalfService
from minimq_broker.services.offsets import OffsetService
from minimq_broker.services.popping import PopService
from minimq_broker.services.pull import PullService
from minimq_broker.services.replication import Replication
from minimq_broker.services.replying import ReplyService
from minimq_broker.services.route_lookup import RouteLookup
from minimq_broker.services.session import SessionOptions, SessionService
from minimq_broker.services.starts import GroupBeginnings
from minimq_broker.services.status import Identity, StatusService
from minimq_broker.services.topics import TopicService
from minimq_broker.services.tracing import TraceService
from minimq_broker.services.transactions import TransactionService
from minimq_proto.v1 import attend_pb2, broker_pb2, broker_pb2_grpc, delay_pb2, find_pb2, halves_pb2

Response = TypeVar("Response")


@dataclass(frozen=True, slots=True)
class ServiceOptions:
    """Options of the calls of a broker.

    Attributes:
        sessions: when a client counts as dead.
        group_expiry_ms: how long an unused group is kept, in ms; 0: forever.
        auto_create_queues: queues of a topic that is made by its first message; 0: none is.
        halves: when it is asked how transactions with half messages end.
    """

    sessions: SessionOptions
    group_expiry_ms: int
    auto_create_queues: int
    halves: HalfOptions


class BrokerService(broker_pb2_grpc.BrokerServicer):
    """All calls of one broker.

    Args:
        engine: store, roles, groups and leases.
        identity: its name and version.
        options: of the calls.
        routes: finds topics of other brokers.
        replication: how the replicas of this broker are.
        transactions: decides and publishes transactions.
        access: has the users and rules.

    Attributes:
        group_deletion: deletes groups; with each role of the broker it is another one.
        half_checks: asks how transactions with half messages end.
    """

    def __init__(
        self,
        engine: Engine,
        identity: Identity,
        options: ServiceOptions,
        routes: RouteLookup,
        replication: Replication,
        transactions: TransactionService,
        access: AccessService,
    ) -> None:
        self._engine = engine
        self._options = options
        self._broker_name = identity.broker_name
        self._append = AppendService(engine)
        self._pull = PullService(engine, replication.slave_for_readers)
        self._find = FindService(engine)
        self._trace = TraceService(engine)
        self._begin_sessions()
        self._assignment = AssignmentService(engine.tables, routes, identity.broker_name)
        self._topics = TopicService(engine, options.auto_create_queues)
        self._transactions = transactions
        self._halves = HalfService(engine, options.halves, transactions.look)
        self.half_checks = HalfChecks(engine, options.halves, self._halves, lambda: self._attending.attendants)
        self._access = access
        self._delays = DelayService(engine)
        self._offsets = OffsetService(engine)
        self._atomic = AtomicAppendService(engine, self._offsets, lambda: self._popping)
        self._status = StatusService(engine, identity, replication, access)

    def begin(self) -> None:
        """Begin anew with sessions: the engine has other groups and leases from now on."""
        self._session.retire()
        self._popping.retire()
        self._attending.retire()
        self._begin_sessions()

    def topics_changed(self) -> None:
        """Look for queues that members wait for: their topics may have come, or have got more queues."""
        self._session.leases.ask_again()

    def _begin_sessions(self) -> None:
        options = self._options.sessions
        expiry = GroupExpiry(self._options.group_expiry_ms, self._engine.deletion_ms())
        self._session = SessionService(self._engine, options, self._broker_name)
        starts = GroupBeginnings(self._engine.handle, self._engine.offsets)
        self._popping = PopService(self._engine, starts, options.grace_s, self._session.may_ask_again)
        self._attending = AttendService(self._engine)
        self._replying = ReplyService(self._engine, self._attending.attendants)
        self._groups = GroupService(self._engine, self._session.leases, expiry)
        self.group_deletion = GroupDeletion(self._engine, self._session, expiry, options.timeout_s)

    # The stubs type streams as generators; grpc.aio takes handlers that write to the context as well.

    async def Append(  # type: ignore[override]
        self, requests: AsyncIterator[broker_pb2.AppendRequest], context: Any
    ) -> None:
        await self._append.serve(requests, context)

    async def AppendAtomic(  # type: ignore[override]
        self, requests: AsyncIterator[broker_pb2.AtomicAppendRequest], context: Any
    ) -> None:
        await self._atomic.serve(requests, context)

    async def Pull(  # type: ignore[override]
        self, requests: AsyncIterator[broker_pb2.PullRequest], context: Any
    ) -> None:
        await self._pull.serve(requests, context)

    async def Find(self, request: find_pb2.FindRequest, context: Any) -> find_pb2.FindResponse:
        return await _answer(self._find.find(request), context)

    async def TraceMessage(self, request: find_pb2.TraceMessageRequest, context: Any) -> find_pb2.TraceMessageResponse:
        return await _answer(self._trace.trace(request), context)

    async def Pop(  # type: ignore[override]
        self, requests: AsyncIterator[broker_pb2.PopRequest], context: Any
    ) -> None:
        await self._popping.serve(requests, context)

    async def Session(  # type: ignore[override]
        self, requests: AsyncIterator[broker_pb2.SessionRequest], context: Any
    ) -> None:
        await _answer(self._session.serve(requests, context), context)

    async def Attend(  # type: ignore[override]
        self, requests: AsyncIterator[attend_pb2.AttendRequest], context: Any
    ) -> None:
        await self._attending.serve(requests, context)

    async def Reply(  # type: ignore[override]
        self, requests: AsyncIterator[attend_pb2.ReplyRequest], context: Any
    ) -> None:
        await self._replying.serve(requests, context)

    async def CreateTopic(self, request: broker_pb2.CreateTopicRequest, context: Any) -> broker_pb2.CreateTopicResponse:
        return await _answer(self._topics.create(request), context)

    async def UpdateTopic(self, request: broker_pb2.UpdateTopicRequest, context: Any) -> broker_pb2.UpdateTopicResponse:
        return await _answer(self._topics.update(request), context)

    async def DeleteTopic(self, request: broker_pb2.DeleteTopicRequest, context: Any) -> broker_pb2.DeleteTopicResponse:
        return await _answer(self._topics.delete(request), context)

    async def DescribeTopic(
        self, request: broker_pb2.DescribeTopicRequest, context: Any
    ) -> broker_pb2.DescribeTopicResponse:
        return await _answer(self._topics.describe(request), context)

    async def CommitTransaction(
        self, request: broker_pb2.CommitTransactionRequest, context: Any
    ) -> broker_pb2.CommitTransactionResponse:
        return await _answer(self._transactions.commit(request), context)

    async def DescribeTransaction(
        self, request: broker_pb2.DescribeTransactionRequest, context: Any
    ) -> broker_pb2.DescribeTransactionResponse:
        return await _answer(self._transactions.describe(request), context)

    async def Recall(self, request: delay_pb2.RecallRequest, context: Any) -> delay_pb2.RecallResponse:
        return await _answer(self._delays.recall(request), context)

    async def ListDelayed(self, request: delay_pb2.ListDelayedRequest, context: Any) -> delay_pb2.ListDelayedResponse:
        return await _answer(self._delays.list_delayed(request), context)

    async def EndHalves(  # type: ignore[override]
        self, requests: AsyncIterator[halves_pb2.EndHalvesRequest], context: Any
    ) -> None:
        await self._halves.serve(requests, context)

    async def ListHalves(self, request: halves_pb2.ListHalvesRequest, context: Any) -> halves_pb2.ListHalvesResponse:
        return await _answer(self._halves.list_open(request), context)

    async def GetOffset(self, request: broker_pb2.GetOffsetRequest, context: Any) -> broker_pb2.GetOffsetResponse:
        return await _answer(self._offsets.at_time(request), context)

    async def CommitOffsets(
        self, request: broker_pb2.CommitOffsetsRequest, context: Any
    ) -> broker_pb2.CommitOffsetsResponse:
        return await _answer(self._offsets.commit(request), context, request.client_id)

    async def GetCommitted(
        self, request: broker_pb2.GetCommittedRequest, context: Any
    ) -> broker_pb2.GetCommittedResponse:
        return await _answer(self._offsets.committed(request), context)

    async def DescribeGroup(
        self, request: broker_pb2.DescribeGroupRequest, context: Any
    ) -> broker_pb2.DescribeGroupResponse:
        return await _answer(self._groups.describe(request), context)

    async def ListGroups(self, request: broker_pb2.ListGroupsRequest, context: Any) -> broker_pb2.ListGroupsResponse:
        return await _answer(self._groups.list_groups(), context)

    async def ResetOffsets(
        self, request: broker_pb2.ResetOffsetsRequest, context: Any
    ) -> broker_pb2.ResetOffsetsResponse:
        return await _answer(self._groups.reset(request), context)

    async def DeleteGroup(self, request: broker_pb2.DeleteGroupRequest, context: Any) -> broker_pb2.DeleteGroupResponse:
        return await _answer(self.group_deletion.delete(request), context)

    async def QueryAssignment(
        self, request: broker_pb2.QueryAssignmentRequest, context: Any
    ) -> broker_pb2.QueryAssignmentResponse:
        return await _answer(self._assignment.query(request), context)

    async def GetStatus(self, request: broker_pb2.GetStatusRequest, context: Any) -> broker_pb2.GetStatusResponse:
        return self._status.tell()

    async def Probe(self, request: broker_pb2.ProbeRequest, context: Any) -> broker_pb2.ProbeResponse:
        return await _answer(self._status.probe(), context)

    async def SetPermission(
        self, request: broker_pb2.SetPermissionRequest, context: Any
    ) -> broker_pb2.SetPermissionResponse:
        return await _answer(self._status.set_permission(request), context)

    async def GetAccess(self, request: broker_pb2.GetAccessRequest, context: Any) -> broker_pb2.GetAccessResponse:
        return self._access.tell()

    async def SetAccess(self, request: broker_pb2.SetAccessRequest, context: Any) -> broker_pb2.SetAccessResponse:
        return await _answer(self._access.set(request), context)

    async def Promote(self, request: broker_pb2.PromoteRequest, context: Any) -> broker_pb2.PromoteResponse:
        return await _answer(self._status.promote(request), context)


async def _answer(call: Awaitable[Response], context: Any, client_id: str = "") -> Response:
    """Return what a call returns; its changes are logged with the caller."""
    called_by(context.peer(), client_id)
    return await call
