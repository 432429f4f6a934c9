"""What both consumers are made of: subscriptions, the group member and the core that fetches."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from minimq.filtering.message_filter import MessageFilter
from minimq.options import nameserver_addresses
from minimq.rebalance import AllocationStrategy, allocation, name_of
from minimq.receiving.broadcast_reader import BroadcastReader
from minimq.receiving.consumer_core import ConsumerCore, News
from minimq.receiving.consumer_options import ConsumerOptions, QueuesCallback
from minimq.receiving.group_member import GroupMember
from minimq.receiving.local_offsets import LocalOffsets
from minimq.receiving.member_state import Grant
from minimq.receiving.member_words import Membership
from minimq.receiving.offset_reset import OffsetReset
from minimq.receiving.start_offsets import StartOffsets
from minimq.routes.read_places import ReadPlaces
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks
from minimq_common.allocation import known_to_brokers
from minimq_common.errors import Closed, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_common.names import RETRY_PREFIX, check_group, check_topic
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
    if not isinstance(start, datetime):
        raise InvalidArgument(f"start {start!r} is neither 'earliest' nor 'latest' nor a time")
    if start.tzinfo is None:
        start = start.replace(tzinfo=UTC)
    return broker_pb2.StartPosition(at=broker_pb2.START_AT_TIMESTAMP, timestamp_ms=round(start.timestamp() * 1000))


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}: it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character
        raise InvalidArgument(f"{name} is {value!r}: it must be text that UTF-8 can hold") from None


def _strategy(given: str | AllocationStrategy) -> AllocationStrategy:
    if isinstance(given, str):
        return allocation(given)
    if not hasattr(given, "allocate") and not hasattr(given, "allocate_all"):
        raise InvalidArgument(f"allocation is {given!r}: it must be the name of a strategy, or a strategy")
    return given


class Consumer:
    """A client that reads for a group. Base of `PullConsumer` and `PushConsumer`.

    As a `QueueOwner` it takes what the group member tells on that member's thread. The user's callbacks about queues
    run on the thread that takes messages from the core: `ConsumerCore.take` calls `on_assigned` and `on_lost`,
    `_hand_back` and `_revoke_all` call `on_revoked`.
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
        self._process = os.getpid()
        _check_text("group", group)
        _check_text("client_id", client_id or "")
        if options.model == "broadcasting" and not client_id:
            raise InvalidArgument("broadcasting needs a client_id that stays the same: the offsets are kept under it")
        self.group = check_group(group)
        self.client_id = client_id or new_client_id()
        self._options = options
        self._strategy = _strategy(strategy)
        if options.assignment == "server" and options.model == "clustering":
            known_to_brokers(name_of(self._strategy))
        self._start = start_position(start)
        self._routes = RouteCache(nameserver_addresses(nameserver))
        self._links = BrokerLinks()
        self._places = ReadPlaces(self._routes, self._links, slaves=options.read_from_slaves)
        self._starts = StartOffsets(self._places, self._start, options.request_timeout_s)
        self._core = ConsumerCore(
            self._places, self._links, group, self.client_id, options, self._lease_over, self._announce
        )
        self._core.announce_reset = self._offset_reset
        self._filters: dict[str, MessageFilter] = {}
        self._member: GroupMember | BroadcastReader | None = None
        #: What a callback may raise without ending anything. In the user's own thread it is not for us to say that a
        #: thread which was told to end goes on.
        self._callback_faults: type[BaseException] = Exception
        self._closed = False
        self._all_revoked = False

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        self.check_process()
        return self._core.queues

    @property
    def missed_messages(self) -> int:
        """How many messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._core.missed_messages

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that the state which belongs to queues is saved, so that other members need not wait for it any longer.

        With `hold_s`, nobody gets a queue that this member has left before this was said or the time is over. The state
        counts as saved by itself when `on_revoked` returns, unless it returns `False` or raises. May be called from any
        thread, before or after the queues have left.

        Raises:
            InvalidArgument: topics were not subscribed to.
        """
        self.check_process()
        if self._member is None:
            raise InvalidArgument("only a member of a group has state to hand over: subscribe first")
        self._member.state_saved(queues)

    @property
    def is_forked(self) -> bool:
        """Whether this is a copy in a process that was forked: threads and connections did not come along."""
        return os.getpid() != self._process

    def check_process(self) -> None:
        """Raise `Closed` where nothing could work."""
        if self.is_forked:
            raise Closed(
                f"the consumer was made in process {self._process}, and this is {os.getpid()}: "
                "make one in each process, after the fork"
            )

    def _subscribe(self, topic: str, expression: str = "*", where: str | None = None) -> None:
        self.check_process()
        if self._member is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        self._filters[check_topic(topic)] = wanted = MessageFilter(expression, where)
        self._core.want_tags(topic, wanted.tag_hashes)

    def _join(self) -> None:
        """Join the group with the topics that are subscribed to.

        Raises:
            TopicNotFound, Unavailable: a topic is not found.
            StoreError: the file of the offsets cannot be used.
        """
        for topic in self._filters:
            if not topic.startswith(RETRY_PREFIX):  # which need not be there yet
                self._routes.route(topic)
        if self._options.model == "broadcasting":
            offsets = LocalOffsets(self._options.offsets_dir, self.group, self.client_id)
            self._core.commits.store = offsets
            self._member = BroadcastReader(
                self._routes, sorted(self._filters), offsets, self._starts, self, self._options
            )
        else:
            filters = {topic: wanted.text for topic, wanted in self._filters.items()}
            membership = Membership(self.group, self.client_id, filters, self._start)
            self._core.commits.leased = True
            self._member = GroupMember(
                self._routes, self._places, self._links, membership, self._strategy, self, self._options
            )
        self._member.start()

    def _hand_back(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        """Give queues whose messages are finished to those who wait for them; only by the thread that takes messages.

        The user is told first. Then they are committed if so wanted.
        """
        self._revoke(list(offsets))
        if commit:
            try:
                self._core.commits.record(offsets)
            except MiniMQError as error:  # the next owner starts a little earlier
                log.warning("consumer: queue left uncommitted group=%s reason=%s", self.group, error)
        epochs = self._core.stop(offsets)
        if self._member is not None:
            self._member.release(epochs)

    def _revoke_all(self) -> None:
        """Tell the user that all queues leave. To be called when closing, before the last commit. Idempotent."""
        if not self._all_revoked:
            self._all_revoked = True
            self._revoke(self._core.queues)

    def _revoke(self, queues: Sequence[MessageQueue]) -> None:
        """Call `on_revoked`; tell the group if the state of the queues is saved by that."""
        self._core.tell_news()
        known = self._core.unannounce(queues)
        callback = self._options.on_revoked
        saved = bool(known) and callback is not None and self._tell_user(callback, known)
        if self._options.hold_s and self._member is not None:
            # There is no state of a queue that the user never knew of.
            self._member.state_saved([queue for queue in queues if saved or queue not in known])

    def _announce(self, news: News, queues: list[MessageQueue]) -> None:
        callback = self._options.on_assigned if news is News.GAINED else self._options.on_lost
        if callback is not None:
            self._tell_user(callback, queues)

    def _offset_reset(self, reset: OffsetReset) -> None:
        callback = self._options.on_offset_reset
        if callback is not None:
            try:
                callback(reset)
            except self._callback_faults:  # it is the user's, and must not end the reading
                log.exception("consumer: a callback failed group=%s queue=%s", self.group, reset.queue)

    def _tell_user(self, callback: QueuesCallback, queues: list[MessageQueue]) -> bool:
        """Call the user's code. Returns whether it went well: it neither failed nor returned `False`."""
        try:
            return callback(queues) is not False
        except self._callback_faults:  # it is the user's, and must not break the hand-over
            log.exception("consumer: a callback failed group=%s queues=%s", self.group, ", ".join(map(str, queues)))
            return False

    def _lease_over(self, queue: MessageQueue, epoch: int) -> None:
        if self._member is not None:
            self._member.lease_over(queue, epoch)

    def _shut_down(self) -> None:
        """Leave the group and end all connections."""
        if self._member is not None:
            self._revoke_all()
            self._member.close()
        self._core.close()
        self._links.close()
        self._routes.close()

    # ---- as the owner of queues -------------------------------------------------------------------

    def granted(self, queue: MessageQueue, grant: Grant) -> None:
        """Begin to read a queue, or go on where it was read before the lease had to be renewed."""
        if not self._core.renew(queue, grant):
            self._core.start(queue, grant)

    def revoked(self, queues: Sequence[MessageQueue]) -> None:
        """Hand out nothing more of queues that others shall have."""
        self._core.leave(queues)

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Read queues no more that were taken away."""
        self._core.lose(queues)

    def trusted(self, broker_name: str, until: float) -> None:
        """Rely on the leases of a broker until then."""
        self._core.trust(broker_name, until)

    def doubted(self, queue: MessageQueue, until: float) -> None:
        """Hand nothing out of a queue after that time until it is granted again."""
        self._core.doubt(queue, until)

    def refused(self, error: MiniMQError | None) -> None:
        """Tell the user again and again why the consumer cannot be part of its group, until it is."""
        self._core.refuse(error)

    def failed(self, error: MiniMQError) -> None:
        """Tell the user what went wrong."""
        self._core.fail(error)

    def tick(self) -> None:
        """Try failed pulls again."""
        self._core.tick()
