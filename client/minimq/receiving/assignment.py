"""Which queues a member of a group shall read: computed by the member itself, or asked of the deciding broker."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from minimq.rebalance import AllocationStrategy, allocate_group
from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2


@dataclass(frozen=True, slots=True)
class GroupView:
    """A group, or topics of it that the same members subscribe to, as one of these sees it.

    Attributes:
        group: its name.
        client_id: of the member.
        queues: of all these topics, by topic, sorted.
        members: client ids of those who subscribe to them, as the deciding broker has told them.
        owners: who had which queue when this list of members began.
        version: of the list.
        decider: address of the deciding broker.
    """

    group: str
    client_id: str
    queues: Mapping[str, Sequence[MessageQueue]]
    members: Sequence[str]
    owners: Mapping[MessageQueue, str]
    version: int
    decider: str


class Assignment(Protocol):
    """A way to a member's share."""

    def share(self, view: GroupView) -> Sequence[MessageQueue] | None:
        """Return the queues of the member; None when they are not known yet.

        Raises:
            InvalidArgument: there is no way to divide the queues.
            MiniMQError: somebody who was asked refused or did not answer.
        """


class OwnAssignment:
    """The member computes its share. All members come to the same result, since they start from the same."""

    def __init__(self, strategy: AllocationStrategy) -> None:
        self._strategy = strategy

    def share(self, view: GroupView) -> Sequence[MessageQueue] | None:
        """See `Assignment.share`."""
        queues = [queue for items in view.queues.values() for queue in items]
        try:
            return allocate_group(self._strategy, view.group, view.client_id, queues, view.members, view.owners)
        except Exception as error:  # the strategy may be the user's own
            raise InvalidArgument(f"allocation strategy {self._strategy.name!r} failed: {error!r}") from error


class ServerAssignment:
    """The deciding broker computes the shares; the strategy is known by its name there."""

    def __init__(self, links: BrokerLinks, timeout_s: float) -> None:
        self._links = links
        self._timeout_s = timeout_s

    def share(self, view: GroupView) -> Sequence[MessageQueue] | None:
        """See `Assignment.share`."""
        link = self._links.to(view.decider)
        found: list[MessageQueue] = []
        for topic in view.queues:
            request = broker_pb2.QueryAssignmentRequest(group=view.group, client_id=view.client_id, topic=topic)
            answer = link.call(link.stub.QueryAssignment, request, self._timeout_s)
            if answer.version < view.version:
                return None
            found += [MessageQueue(item.topic, item.broker_name, item.queue_id) for item in answer.queues]
        return found
