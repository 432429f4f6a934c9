"""The base of pull consumers and leased push consumers: subscriptions, group membership, queue callbacks."""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from minimq.arguments import check_text
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import LoopStep, YieldToLoop, as_coroutine
from minimq.connection.offline_brokers import describe_offline
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.broker_sessions import Membership
from minimq.consuming.commits import OffsetLookup
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.fetcher import Fetcher
from minimq.consuming.group_member import GroupMember
from minimq.consuming.group_start import GroupStart
from minimq.consuming.member_state import Grant
from minimq.consuming.message_filter import MessageFilter, TagExpression
from minimq.consuming.queue_decisions import OffsetReset, QueueEvent
from minimq.consuming.read_ahead import ReadyBatches
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start, start_position
from minimq.features.broadcasting.broadcasting import BroadcastReader, LocalOffsets
from minimq.rebalance import AllocationStrategy, allocation_strategy
from minimq_common.errors import Closed, CorruptBatch, InvalidArgument, MinimqError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id, check_group, check_topic, dead_letter_topic
from minimq_common.wire.protocol_bounds import MAX_AGREED, MAX_FILTER, MAX_SUBSCRIPTIONS, MAX_TAGS

if TYPE_CHECKING:  # circular: they import this module
    from minimq.consuming.pull_reader import PullReader
    from minimq.features.listeners.work_queue_source import WorkQueueSource

log = logging.getLogger(__name__)
#: Warns, when a group begins to read, about brokers that are offline, whose queues are not read.
OFFLINE_LOG = logging.getLogger("minimq.consuming.offline")

T = TypeVar("T")

#: Maximum length of the host name in a client id.
_MAX_HOST_LENGTH = 200


def new_client_id() -> str:
    """Return a unique client id: host, process and 32 random bits."""
    return f"{socket.gethostname()[:_MAX_HOST_LENGTH]}-{os.getpid()}-{secrets.token_hex(4)}"


def checked_client_id(value: object) -> str:
    """Return the client id. Raises `InvalidArgument` if it is not valid."""
    return check_client_id(check_text("client_id", value))


def check_subscriptions(group: str, filters: dict[str, MessageFilter]) -> dict[str, MessageFilter]:
    """Return the filters by topic. Raises `InvalidArgument` if a group cannot have them."""
    if dead_letter_topic(group) in filters:
        raise InvalidArgument(
            f"group {group!r} cannot consume its own dead letters, since those that fail would be stored there again: "
            f"use minimq dlq describe {group} and minimq dlq resend {group}, or another group"
        )
    if len(filters) > MAX_SUBSCRIPTIONS:
        raise InvalidArgument(
            f"{len(filters)} topics are subscribed to, the limit of one consumer is {MAX_SUBSCRIPTIONS}"
        )
    for topic, wanted in filters.items():
        if len(wanted.tag_hashes) > MAX_TAGS:
            raise InvalidArgument(
                f"the filter of topic {topic!r} has {len(wanted.tag_hashes)} tags, the limit is {MAX_TAGS}: "
                "subscribe to all of them, or tag messages with what they have in common"
            )
        if len(wanted.text) > MAX_FILTER:
            raise InvalidArgument(
                f"the filter of topic {topic!r} has {len(wanted.text)} characters, the limit is {MAX_FILTER}: "
                "write a shorter one"
            )
    characters = sum(len(topic) + len(wanted.text) for topic, wanted in filters.items())
    if characters > MAX_AGREED:
        raise InvalidArgument(
            f"topics and filters have {characters} characters, the limit of one group is {MAX_AGREED}: write shorter "
            "filters, or divide the topics among several groups"
        )
    return filters


def _strategy(given: str | AllocationStrategy) -> AllocationStrategy:
    if isinstance(given, str):
        return allocation_strategy(given)
    if not hasattr(given, "allocate") and not hasattr(given, "allocate_all"):
        raise InvalidArgument(f"allocation is {given!r}: it must be the name of a strategy, or a strategy")
    return given


class Found(NamedTuple):
    """Messages for the user. They count as delivered once `handed.given` is `given`: nothing may fail after that."""

    messages: list[ReceivedMessage]
    handed: ReadyBatches
    given: int

    def one_by_one(self, reader: PullReader) -> Iterator[ReceivedMessage]:
        """Yield the messages until `reader.turn` changes; each is finished when the next is requested."""
        handed, turn, given = self.handed, reader.turn, self.handed.given
        for message in self.messages:
            if reader.turn is not turn:
                return
            given += 1
            handed.in_flight = True
            handed.given = given
            yield message
        if reader.turn is turn:
            handed.in_flight = False


class Consumer:
    """A client that reads for a group. Base of `PullReader` and `LeasedSource`.

    `_announce_all` calls the user's `on_assigned` and `on_lost`, `_revoke_and_release` and `_revoke_all` call
    `on_revoked`. These coroutines run where messages are taken, for polls on the user's thread; only their `LoopStep`s
    run on the event loop.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        group: str | None,
        *,
        client_id: str | None,
        strategy: str | AllocationStrategy,
        start: Start,
        options: ConsumerOptions,
    ) -> None:
        if options.model == "broadcasting" and client_id is None:
            raise InvalidArgument("broadcasting needs a client_id that stays the same: the offsets are kept under it")
        if group is not None:
            check_text("group", group)
        self.group = "" if group is None else check_group(group)
        self.client_id = new_client_id() if client_id is None else checked_client_id(client_id)
        self._options = options
        self._strategy = _strategy(strategy)
        self._is_own_strategy = not isinstance(strategy, str)
        self._start = start_position(start)
        self._client = ClusterClient(nameserver, credentials=options.credentials)
        self._process = self._client.connection.process
        self._routes = self._client.routes
        self._places = ReplicaSelector(self._client)
        self._group_start = GroupStart(self._client, self.group, self._start, options.request_timeout_s)
        self._starts = OffsetLookup(self._places, self._start, options.request_timeout_s)
        self._fetcher = Fetcher(self._client, self._places, self.group, self.client_id, options, self)
        #: By topic.
        self.filters: dict[str, MessageFilter] = {}
        #: Keep whole batches beside their messages, for `poll_arrow`.
        self.keeps_batches = False
        #: Number of messages that arrived and did not match the filter.
        self._dropped = 0
        self._member: GroupMember | BroadcastReader | None = None
        self._offsets: LocalOffsets | None = None
        #: Errors of callbacks that are logged and ignored. On the user's own thread, `BaseException` such as
        #: `SystemExit` must pass through.
        self._callback_faults: type[BaseException] = Exception
        self._closed = False
        self._all_revoked = False

    @property
    def is_void(self) -> bool:
        """True in a fork of the process that made the consumer: the membership stays with the parent."""
        return self._process.is_void

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        self._process.check()
        return [queue for queue in self._fetcher.assignment if not self._routes.is_deleted(queue.topic)]

    @property
    def is_ready(self) -> bool:
        """True once a broker has accepted the consumer into its group, and every position is fixed."""
        is_fixed = self._group_start.is_decided or self._options.model == "broadcasting"
        return is_fixed and self._member is not None and self._member.was_taken

    @property
    def missed_messages(self) -> int:
        """Number of messages skipped because they were deleted before they were read; see `offset_reset`."""
        return self._fetcher.events.missed_messages

    @property
    def filtered_messages(self) -> int:
        return self._dropped + self._fetcher.passed_over

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Report that your state of these queues is saved, so that other members may have the queues.

        With `handover_timeout_s`, a queue that this member has left is granted to another member only after this
        report, or when `handover_timeout_s` is over. When `on_revoked` returns, the state counts as saved, unless it
        returns `False` or raises. Thread-safe; call it before or after the queues are revoked.

        Raises:
            InvalidArgument: topics were not subscribed to.
        """
        self._process.check()
        if self._member is None:
            raise InvalidArgument("only a member of a group has state to hand over: subscribe first")
        self._member.mark_state_saved(queues)

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork. On any thread."""
        self._process.check()
        if self._closed:
            raise Closed("the consumer is closed")
        self._client.check_open()

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Subscribe to a topic, before the first message is requested."""
        self.check_open()
        if not self.group:
            raise InvalidArgument(
                "a consumer without a group can only be assigned queues: give it a group to subscribe"
            )
        if self._member is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        wanted = MessageFilter(expression, where)
        self.filters = check_subscriptions(self.group, {**self.filters, check_topic(topic): wanted})

    def _on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> LoopStep[T]:
        return LoopStep(self._client, make)

    async def _take(self, most: int, timeout_s: float, but: Collection[MessageQueue] = ()) -> Found | None:
        """Return messages of one queue; None if none arrived in time, or the caller has other work to do first."""
        is_due = self._fetcher.due and self._fetcher.has_due(but)
        if not is_due and (found := await self._at_hand(most, but)):
            return found
        self._fetcher.raise_error()
        await self._on_loop(partial(self._fetcher.wait, most, but, timeout_s))
        self._fetcher.raise_error()
        found = await self._at_hand(most, but)
        if found is None:
            self._fetcher.raise_too_many_streams()
        return found

    async def _at_hand(self, most: int, but: Collection[MessageQueue]) -> Found | None:
        while (handed := self._fetcher.at_hand(but)) is not None:
            if handed.messages is None:
                try:
                    for _ in handed.opening(self.filters.get(handed.queue.topic), keeps_batches=self.keeps_batches):
                        await YieldToLoop()
                except (CorruptBatch, InvalidArgument) as error:
                    await self._on_loop(as_coroutine(self._fetcher.damaged, handed, error))
                    raise
                self._dropped += handed.dropped
                continue  # check again: the loop may have removed it meanwhile
            if messages := handed.messages:  # none if the filter or compaction has dropped all of them
                end = min(handed.given + most, len(messages))
                self._fetcher.end_turn(handed)
                return Found(messages[handed.given : end], handed, end)
        return None

    async def _announce_all(self) -> bool:
        if not self._fetcher.events.are_there:
            return False
        events = self._fetcher.events
        self._apply_resets(await self._on_loop(as_coroutine(events.take)))
        await self._call_user(partial(events.announce, self._announce, self._offset_reset))
        return True

    def _apply_resets(self, resets: Sequence[OffsetReset]) -> None:
        """Adapt to offset resets, before the user's callbacks."""

    async def _call_user(self, call: Callable[[], T]) -> T:
        return call()

    async def _join(self) -> None:
        """Join the group, or begin broadcasting. On the event loop."""
        if self._member is not None:
            return
        if self._options.model == "broadcasting":
            offsets = self._offsets = LocalOffsets(self._options.offsets_dir, self.group, self.client_id)
            self._fetcher.commits.store = offsets
            self._member = BroadcastReader(self._client, sorted(self.filters), offsets, self._starts, self._fetcher)
        else:
            filters = {topic: wanted.text for topic, wanted in self.filters.items()}
            self._group_start.begin(filters.keys())
            membership = Membership(self.group, self.client_id, filters, self._start)
            self._fetcher.commits.leased = True
            self._member = GroupMember(
                self._client,
                self._places,
                membership,
                self._strategy,
                self._fetcher,
                self._options,
                is_own_strategy=self._is_own_strategy,
            )
        self._member.start()
        for route in filter(None, map(self._routes.known, self.filters)):
            for line in describe_offline((each for each in route.offline if each.queues), "not read until it is back"):
                OFFLINE_LOG.warning(
                    "consumer: broker offline group=%s topic=%s state=%s", self.group, route.topic, line
                )

    async def _revoke_and_release(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        """Call `on_revoked` for revoked queues, commit them if `commit` is set, and release them.

        Call it where messages are taken, when none of the queues has messages in flight.
        """
        await self._revoke(list(offsets))
        await self._on_loop(partial(self._give_back, offsets, commit=commit))

    async def _give_back(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        if commit:
            try:
                await self._record(offsets, automatic=True)
            except TopicNotFound as error:  # `DeletedTopics` reports the deletion
                log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)
            except MinimqError as error:  # the next owner rereads a few messages
                log.warning(
                    "consumer: queues not committed group=%s queues=%d reason=%s", self.group, len(offsets), error
                )
        epochs = self._fetcher.stop(offsets)
        if self._member is not None:
            self._member.release(epochs)

    async def _record(
        self, offsets: Mapping[MessageQueue, int], *, automatic: bool = False, retry_s: float = 0.0
    ) -> None:
        commits = self._fetcher.commits
        await commits.record(commits.progress(offsets), automatic=automatic, retry_s=retry_s)

    async def _revoke_all(self) -> None:
        if not self._all_revoked:
            self._all_revoked = True
            await self._revoke(self._fetcher.queues)

    async def _revoke(self, queues: Sequence[MessageQueue]) -> None:
        with suppress(Closed):  # the `Cluster` was closed: pending events cannot be announced
            await self._announce_all()
        known = self._fetcher.events.unannounce(queues)
        callback, saved = self._options.on_revoked, False
        if known and callback is not None:
            saved = await self._call_user(partial(self._call_back, callback, known, known))
        if self._options.handover_timeout_s and self._member is not None:
            # The user has no state of queues that were never announced.
            self._member.mark_state_saved([queue for queue in queues if saved or queue not in known])

    def _announce(self, event: QueueEvent, queues: list[MessageQueue]) -> None:
        callback = self._options.on_assigned if event is QueueEvent.GAINED else self._options.on_lost
        self._call_back(callback, queues, queues)

    def _offset_reset(self, reset: OffsetReset) -> None:
        self._call_back(self._options.on_offset_reset, reset, [reset.queue])

    def _call_back(self, callback: Callable[[T], object] | None, about: T, queues: Iterable[MessageQueue]) -> bool:
        """Call a callback, if there is one; return whether it has succeeded, and not returned `False`."""
        try:
            return callback is not None and callback(about) is not False
        except self._callback_faults:  # an error of user code must neither stop reading nor block the rebalance
            log.exception("consumer: a callback failed group=%s queues=%s", self.group, ", ".join(map(str, queues)))
            return False

    # ---- called by the fetcher, on the event loop: must not block --------------------------------

    def begins(self, queue: MessageQueue, lease: Grant) -> None:
        """Called before a queue of the group is read."""

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Called when queues were lost."""

    def lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        if self._member is not None:
            self._member.lease_over(queue, epoch, error)

    def _shut_down(self) -> None:
        self._client.connection.call_soon(self._group_start.close)
        if self._member is not None:
            with suppress(Closed):  # the `Cluster` was closed before
                self._client.wait(self._member.leave)
        if self._offsets is not None:
            self._offsets.close()
        self._fetcher.close()
        self._client.close()


class Subscriber:
    """Base of the consumer classes of users: delegates to the internal consumer."""

    _reader: Any

    @property
    def group(self) -> str:
        """The consumer group; empty for a consumer without one, which has no leases and commits nothing."""
        return str(self._reader.group)

    @property
    def client_id(self) -> str:
        """Unique name of this consumer in its group."""
        return str(self._reader.client_id)

    def subscribe(self, topic: str, tags: TagExpression = "*", *, where: str | None = None) -> None:
        """Subscribe to a topic, before the first message is requested.

        Args:
            topic: its name; call again for further topics.
            tags: which ones: "*", for example "paid || refunded", or ["paid", "refunded"].
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                match both. All members of a group need the same filter of a topic.

        Raises:
            InvalidArgument: the name or an expression is wrong, or queues were assigned.
        """
        self._reader.subscribe(topic, tags, where)


class BaseConsumer(Subscriber):
    """Base of the consumers that may lease queues."""

    _reader: Consumer | WorkQueueSource

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        return self._reader.assignment

    @property
    def missed_messages(self) -> int:
        """Number of messages skipped because they were deleted before they were read; see `offset_reset`."""
        return self._reader.missed_messages

    @property
    def filtered_messages(self) -> int:
        """Number of messages that were read but filtered out."""
        return self._reader.filtered_messages

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        self._reader.mark_state_saved(queues)

    mark_state_saved.__doc__ = Consumer.mark_state_saved.__doc__
