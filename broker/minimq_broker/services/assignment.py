"""Server-side assignment: the deciding broker of a group divides the queues for its members."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from minimq_broker.core.groups import Members
from minimq_broker.services.role_tables import RoleTables
from minimq_broker.services.route_lookup import RouteLookup
from minimq_common.allocation import known_to_brokers
from minimq_common.allocation.members import deciders
from minimq_common.errors import GroupConflict, InvalidArgument
from minimq_common.model import TopicRoute
from minimq_common.names import check_group
from minimq_proto.v1 import broker_pb2


class AssignmentService:
    """Answers which queues a member shall read."""

    def __init__(self, tables: RoleTables, routes: RouteLookup, broker_name: str) -> None:
        self._tables = tables
        self._routes = routes
        self._broker_name = broker_name

    async def query(self, request: broker_pb2.QueryAssignmentRequest) -> broker_pb2.QueryAssignmentResponse:
        """Return a member's share of a topic, on all brokers, computed from the current member list.

        Only a deciding broker answers: the first by name of those that carry the topic or, while all members subscribe
        to the same, of those that carry any topic of the member. Others refuse and name it, since a member list of
        theirs may be another one; whoever asked them looks at the routes again and asks anew.
        """
        group = check_group(request.group)
        agreement = self._tables.groups.agreement(group)
        topics = self._tables.groups.topics(group, request.client_id)
        if agreement is None or not topics:
            raise InvalidArgument(f"{request.client_id!r} is not in group {group!r}: join it before asking")
        if request.topic not in topics:
            raise InvalidArgument(f"{request.client_id!r} subscribes to {topics}, not to {request.topic!r}")
        if not agreement.by_server:
            raise InvalidArgument(
                f"members of group {group!r} compute their queues themselves: join it with assignment by the server"
            )
        strategy = known_to_brokers(agreement.allocation)
        routes = dict(zip(topics, await asyncio.gather(*map(self._routes.route, topics)), strict=True))
        route = routes[request.topic]
        members = self._tables.groups.members(group)  # as they are now: looking for the routes took a while
        self._check_decider(members, request.topic, routes)
        subscribers = members.member_list.subscribers(request.topic)
        if route is None or not subscribers:
            return broker_pb2.QueryAssignmentResponse(version=members.version)
        share = strategy.allocate(group, request.client_id, route.read_queues(), subscribers)
        return broker_pb2.QueryAssignmentResponse(
            version=members.version,
            queues=[
                broker_pb2.QueueName(topic=queue.topic, broker_name=queue.broker_name, queue_id=queue.queue_id)
                for queue in share
            ],
        )

    def _check_decider(self, members: Members, topic: str, routes: Mapping[str, TopicRoute | None]) -> None:
        carriers = {
            name: {queue.broker_name for queue in queues}
            for name, route in routes.items()
            if route is not None and (queues := route.read_queues())
        }
        carriers.setdefault(topic, {self._broker_name})
        # The member may go by the list of another broker, by which topics differ, so this one is accepted in any case.
        accepted = {deciders(carriers, same_topics=False)[topic]}
        if not members.topics:
            accepted.add(deciders(carriers, same_topics=True)[topic])
        if self._broker_name not in accepted:
            raise GroupConflict(
                f"broker {min(accepted)} decides for group {members.group!r}, not {self._broker_name}: ask there"
            )
