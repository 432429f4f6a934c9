"""Server-side assignment: the deciding broker of a group divides the queues for its members."""

from __future__ import annotations

import asyncio

from minimq_broker.services.engine import Engine
from minimq_broker.services.route_lookup import RouteLookup
from minimq_common.allocation import known_to_brokers
from minimq_common.errors import GroupConflict, InvalidArgument
from minimq_common.model import TopicRoute
from minimq_common.names import check_group
from minimq_proto.v1 import broker_pb2


class AssignmentService:
    """Answers which queues a member shall read.

    Args:
        engine: has the groups.
        routes: where the queues of topics are, on all brokers.
        broker_name: of this broker.
    """

    def __init__(self, engine: Engine, routes: RouteLookup, broker_name: str) -> None:
        self._engine = engine
        self._routes = routes
        self._broker_name = broker_name

    async def query(self, request: broker_pb2.QueryAssignmentRequest) -> broker_pb2.QueryAssignmentResponse:
        """Tell a member its share of a topic, on all brokers, from the member list as it is now.

        Only the deciding broker answers: the first by name of those that carry a topic of the group. Others
        refuse and name it, since a member list of theirs may be another one; whoever asked them looks at the routes
        again and asks anew.

        Raises:
            GroupConflict: another broker decides.
            InvalidArgument: the client has not joined the group here, the group does not subscribe to the topic, or its
                members compute their shares themselves.
            Unavailable: no name server says where the queues are.
        """
        group = check_group(request.group)
        agreement = self._engine.groups.agreement(group)
        if agreement is None or not self._engine.groups.is_member(group, request.client_id):
            raise InvalidArgument(f"{request.client_id!r} is not in group {group!r}: join it before asking")
        if request.topic not in agreement.topics:
            raise InvalidArgument(f"group {group!r} subscribes to {agreement.topics}, not to {request.topic!r}")
        if not agreement.by_server:
            raise InvalidArgument(
                f"members of group {group!r} compute their queues themselves: join it with assignment by the server"
            )
        strategy = known_to_brokers(agreement.allocation)
        routes = dict(
            zip(agreement.topics, await asyncio.gather(*map(self._routes.route, agreement.topics)), strict=True)
        )
        self._check_decider(group, [route for route in routes.values() if route is not None])
        route = routes[request.topic]
        members = self._engine.groups.members(group)  # as they are now: looking for the routes took a while
        if route is None or not members.client_ids:
            return broker_pb2.QueryAssignmentResponse(version=members.version)
        share = strategy.allocate(group, request.client_id, route.read_queues(), members.client_ids)
        return broker_pb2.QueryAssignmentResponse(
            version=members.version,
            queues=[
                broker_pb2.QueueName(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
                for queue in share
            ],
        )

    def _check_decider(self, group: str, routes: list[TopicRoute]) -> None:
        carriers = {queue.broker_name for route in routes for queue in route.read_queues()}
        decider = min(carriers, default=self._broker_name)
        if decider != self._broker_name:
            raise GroupConflict(f"broker {decider} decides for group {group!r}, not {self._broker_name}: ask there")
