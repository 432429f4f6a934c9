"""What both consumers are made of: subscriptions, the group member and the core that fetches."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from minimq.filtering.tag_filter import TagFilter
from minimq.options import nameserver_addresses
from minimq.rebalance import AllocationStrategy, allocation
from minimq.receiving.consumer_core import ConsumerCore
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.group_member import Grant, GroupMember, Membership
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_common.names import check_group, check_topic
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: "earliest", "latest" or a time.
Start = str | datetime


def new_client_id() -> str:
    """Return an id that no other client has: host, process and 32 random bits."""
    return f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"


def start_position(start: Start) -> broker_pb2.StartPosition:
    """Return where a new group begins. Raises `InvalidArgument`."""
    if start == "earliest":
        return broker_pb2.StartPosition(at=broker_pb2.START_AT_EARLIEST)
    if start == "latest":
        return broker_pb2.StartPosition(at=broker_pb2.START_AT_LATEST)
    if isinstance(start, str):
        try:
            start = datetime.fromisoformat(start)
        except ValueError:
            raise InvalidArgument(f"start {start!r} is neither 'earliest' nor 'latest' nor a time") from None
    if start.tzinfo is None:
        start = start.replace(tzinfo=UTC)
    return broker_pb2.StartPosition(at=broker_pb2.START_AT_TIMESTAMP, timestamp_ms=round(start.timestamp() * 1000))


class Consumer:
    """A client that reads for a group. Base of `PullConsumer` and `PushConsumer`.

    As a `QueueOwner` it takes what the group member tells on that member's thread.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str],
        group: str,
        *,
        client_id: str | None,
        strategy: str | AllocationStrategy,
        start: Start,
        options: ConsumerOptions,
    ) -> None:
        self.group = check_group(group)
        self.client_id = client_id or new_client_id()
        self._options = options
        self._strategy = allocation(strategy) if isinstance(strategy, str) else strategy
        self._start = start_position(start)
        self._routes = RouteCache(nameserver_addresses(nameserver))
        self._links = BrokerLinks()
        self._core = ConsumerCore(self._routes, self._links, group, self.client_id, options, self._lease_over)
        self._filters: dict[str, TagFilter] = {}
        self._member: GroupMember | None = None
        self._closed = False

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._core.queues

    def _subscribe(self, topic: str, expression: str) -> None:
        if self._member is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        self._filters[check_topic(topic)] = TagFilter(expression)

    def _join(self) -> None:
        """Join the group with the topics that are subscribed to. Raises `TopicNotFound`, `Unavailable`."""
        for topic in self._filters:
            self._routes.route(topic)
        membership = Membership(self.group, self.client_id, tuple(sorted(self._filters)), self._start)
        self._core.leased = True
        self._member = GroupMember(self._routes, self._links, membership, self._strategy, self, self._options)
        self._member.start()

    def _hand_back(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        """Give queues to those who wait for them, committed first if so wanted."""
        if commit:
            try:
                self._core.commit(offsets)
            except MiniMQError as error:  # the next owner starts a little earlier
                log.warning("consumer: queue left uncommitted group=%s reason=%s", self.group, error)
        for queue in offsets:
            self._core.stop(queue)
        if self._member is not None:
            self._member.release(offsets)

    def _lease_over(self, queue: MessageQueue, epoch: int) -> None:
        if self._member is not None:
            self._member.lease_over(queue, epoch)

    def _shut_down(self) -> None:
        """Leave the group and end all connections."""
        if self._member is not None:
            self._member.close()
        self._core.close()
        self._links.close()
        self._routes.close()

    # ---- as the owner of queues -------------------------------------------------------------------

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Begin to read a queue, or go on where it was read before the lease had to be renewed."""
        if not self._core.renew(queue, grant):
            self._core.start(queue, grant.offset, grant.epoch, grant.topic_id)

    def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Hand out nothing more of queues that others shall have."""
        self._core.leave(queues)

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away."""
        for queue in queues:
            self._core.stop(queue)

    def failed(self, error: MiniMQError) -> None:
        """Tell the user why the consumer cannot be part of its group."""
        self._core.fail(error)

    def tick(self) -> None:
        """Try failed pulls again."""
        self._core.tick()
