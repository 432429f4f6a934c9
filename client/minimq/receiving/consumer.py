"""The base of both consumers: subscriptions, the group member and the fetcher; and the facts that their faces tell."""

from __future__ import annotations

import os
import secrets
import socket
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from minimq.connection.away import describe_away
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import LoopStep, Turn, as_coroutine
from minimq.connection.read_places import ReadPlaces
from minimq.filtering.message_filter import MessageFilter
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy, allocation
from minimq.receiving.broadcasting import BroadcastReader, LocalOffsets
from minimq.receiving.broker_sessions import Membership
from minimq.receiving.commits import OffsetLookup
from minimq.receiving.consumer_options import ConsumerOptions, QueuesCallback
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.group_member import GroupMember
from minimq.receiving.member_state import Grant
from minimq.receiving.queue_decisions import OffsetReset, QueueEvent
from minimq.receiving.read_ahead import HandOver
from minimq.receiving.received import ReceivedMessage
from minimq.transport.client_log import client_logger
from minimq.transport.start_position import Start, start_position
from minimq_common.errors import Closed, CorruptBatch, InvalidArgument, MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id, check_group, check_topic
from minimq_common.wire.protocol_bounds import MAX_AGREED, MAX_FILTER, MAX_SUBSCRIPTIONS, MAX_TAGS

if TYPE_CHECKING:  # they build on this
    from minimq.receiving.listening.popped_source import PoppedSource
    from minimq.receiving.pull_reader import PullReader

log = client_logger(__name__)
#: Tells of brokers that are away when a group begins to read, so that their queues are not missed in silence.
AWAY_LOG = client_logger("minimq.receiving.away")

T = TypeVar("T")

#: Characters of the name of this machine that are in the id of a client.
_MOST_OF_HOST = 200


def new_client_id() -> str:
    """Return an id that no other client has: host, process and 32 random bits."""
    return f"{socket.gethostname()[:_MOST_OF_HOST]}-{os.getpid()}-{secrets.token_hex(4)}"


def check_text(name: str, value: object) -> str:
    """Return a value. Raises `InvalidArgument` unless it is text that UTF-8 can hold."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {value!r}: it must be text")
    try:
        value.encode()
    except UnicodeEncodeError:  # half a character
        raise InvalidArgument(f"{name} is {value!r}: it must be text that UTF-8 can hold") from None
    return value


def checked_client_id(value: object) -> str:
    """Return the id that a user has given a client. Raises `InvalidArgument` when it cannot be one."""
    return check_client_id(check_text("client_id", value))


def check_subscriptions(filters: dict[str, MessageFilter]) -> dict[str, MessageFilter]:
    """Return the filters of a consumer, by topic. Raises `InvalidArgument` when brokers would not take them."""
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
        return allocation(given)
    if not hasattr(given, "allocate") and not hasattr(given, "allocate_all"):
        raise InvalidArgument(f"allocation is {given!r}: it must be the name of a strategy, or a strategy")
    return given


class Found(NamedTuple):
    """Messages for the user, who has them once `handed.given` is `given`: after that nothing may interrupt."""

    messages: list[ReceivedMessage]
    handed: HandOver
    given: int
    #: Has one item: the poll that returns the messages takes it, or a `close` on another thread; then nobody has them.
    claim: Iterator[bool]

    def one_by_one(self, reader: PullReader) -> Iterator[ReceivedMessage]:
        """Yield the messages until the turn ends; one is finished when the next is asked for."""
        handed, turn, given = self.handed, reader.turn, self.handed.given
        for message in self.messages:
            if reader.turn is not turn:
                return
            given += 1
            handed.in_hand = True
            handed.given = given
            yield message
        if reader.turn is turn:
            handed.in_hand = False


class Consumer:
    """A client that reads for a group. Base of `PullReader` and `LeasedSource`.

    The user's callbacks about queues run where messages are taken: `_announce_all` calls `on_assigned` and `on_lost`,
    `_hand_back` and `_revoke_all` call `on_revoked`. Coroutines run there too, but for their `LoopStep`s.
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
        self._places = ReadPlaces(self._client, slaves=options.read_from_slaves)
        self._starts = OffsetLookup(self._places, self._start, options.request_timeout_s)
        self._fetcher = Fetcher(self._client, self._places, self.group, self.client_id, options, self)
        self._filters: dict[str, MessageFilter] = {}
        #: How many messages came here and were not wanted.
        self._dropped = 0
        self._member: GroupMember | BroadcastReader | None = None
        self._offsets: LocalOffsets | None = None
        #: What a callback may raise without ending anything. In the user's own thread it is not for us to say that a
        #: thread which was told to end goes on.
        self._callback_faults: type[BaseException] = Exception
        self._closed = False
        self._all_revoked = False

    @property
    def is_forked(self) -> bool:
        """True in a fork of the process that made it: the group belongs to that one."""
        return self._process.is_forked

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        self._process.check()
        return [queue for queue in self._fetcher.assignment if not self._routes.is_deleted(queue.topic)]

    @property
    def is_member(self) -> bool:
        """True once a broker has taken it into its group, or at once if nobody has to."""
        return self._member is not None and self._member.was_taken

    @property
    def missed_messages(self) -> int:
        """Number of messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._fetcher.events.missed_messages

    @property
    def filtered_messages(self) -> int:
        """Number of messages that were read but filtered out."""
        return self._dropped + self._fetcher.passed_over

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Tell that the state which belongs to queues is saved, so that other members need not wait for it any longer.

        With `hold_s`, nobody gets a queue that this member has left before this was said or the time is over. The state
        counts as saved by itself when `on_revoked` returns, unless it returns `False` or raises. May be called from any
        thread, before or after the queues have left.

        Raises:
            InvalidArgument: topics were not subscribed to.
        """
        self._process.check()
        if self._member is None:
            raise InvalidArgument("only a member of a group has state to hand over: subscribe first")
        self._member.state_saved(queues)

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork. On any thread."""
        self._process.check()
        if self._closed:
            raise Closed("the consumer is closed")
        self._client.check_open()

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Read a topic as well; before the first message is asked for."""
        self.check_open()
        if not self.group:
            raise InvalidArgument(
                "a consumer without a group can only be assigned queues: give it a group to subscribe"
            )
        if self._member is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        wanted = MessageFilter(expression, where)
        self._filters = check_subscriptions({**self._filters, check_topic(topic): wanted})
        self._fetcher.want(topic, wanted)

    def _on_loop(self, make: Callable[[], Coroutine[Any, Any, T]]) -> LoopStep[T]:
        return LoopStep(self._client, make)

    async def _take(self, most: int, timeout_s: float, but: Collection[MessageQueue] = ()) -> Found | None:
        """Return messages of one queue; None when there is something else to do, or none came in time."""
        self._fetcher.raise_error()
        if found := await self._at_hand(most, but):
            return found
        await self._on_loop(partial(self._fetcher.wait, most, but, timeout_s))
        self._fetcher.raise_error()
        return await self._at_hand(most, but)

    async def _at_hand(self, most: int, but: Collection[MessageQueue]) -> Found | None:
        while (handed := self._fetcher.at_hand(but)) is not None:
            if handed.messages is None:
                try:
                    for _ in handed.opening(self._wanted if self._filters else None):
                        await Turn()
                except (CorruptBatch, InvalidArgument) as error:
                    await self._on_loop(as_coroutine(self._fetcher.damaged, handed, error))
                    raise
                self._dropped += handed.dropped
                continue  # it may have been taken back meanwhile
            if messages := handed.messages:  # else none is wanted, or compaction has removed all of them
                end = min(handed.given + most, len(messages))
                return Found(messages[handed.given : end], handed, end, iter([True]))
        return None

    async def _announce_all(self) -> bool:
        if not self._fetcher.events.are_there:
            return False
        events = self._fetcher.events
        self._start_over(await self._on_loop(as_coroutine(events.take)))
        await self._call_user(partial(events.announce, self._announce, self._offset_reset))
        return True

    def _start_over(self, resets: Sequence[OffsetReset]) -> None:
        """Prepare for queues that go on elsewhere, before the user hears of it."""

    async def _call_user(self, call: Callable[[], T]) -> T:
        return call()

    def _wanted(self, messages: list[ReceivedMessage]) -> list[ReceivedMessage]:
        return self._filters[messages[0].topic].apply(messages)

    async def _join(self) -> None:
        """Become a member of the group, or read without one; on the event loop."""
        if self._member is not None:
            return
        if self._options.model == "broadcasting":
            offsets = self._offsets = LocalOffsets(self._options.offsets_dir, self.group, self.client_id)
            self._fetcher.commits.store = offsets
            self._member = BroadcastReader(
                self._client, sorted(self._filters), offsets, self._starts, self._fetcher, self._options
            )
        else:
            filters = {topic: wanted.text for topic, wanted in self._filters.items()}
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
        for route in filter(None, map(self._routes.known, self._filters)):
            for line in describe_away((each for each in route.away if each.queues), "not read until it is back"):
                AWAY_LOG.warning("consumer: broker away group=%s topic=%s state=%s", self.group, route.topic, line)

    async def _hand_back(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        """Give queues whose messages are finished to the members that wait for them; only where messages are taken.

        `on_revoked` is called first. Then they are committed if so wanted.
        """
        await self._revoke(list(offsets))
        await self._on_loop(partial(self._give_back, offsets, commit=commit))

    async def _give_back(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        if commit:
            try:
                await self._record(offsets, automatic=True)
            except TopicNotFound as error:  # it was deleted, which another error says
                log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)
            except MiniMQError as error:  # the next owner starts a little earlier
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
        await self._announce_all()
        known = self._fetcher.events.unannounce(queues)
        callback, saved = self._options.on_revoked, False
        if known and callback is not None:
            saved = await self._call_user(partial(self._tell_user, callback, known))
        if self._options.hold_s and self._member is not None:
            # There is no state of a queue that the user never knew of.
            self._member.state_saved([queue for queue in queues if saved or queue not in known])

    def _announce(self, event: QueueEvent, queues: list[MessageQueue]) -> None:
        callback = self._options.on_assigned if event is QueueEvent.GAINED else self._options.on_lost
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
        try:
            return callback(queues) is not False
        except self._callback_faults:  # it is the user's, and must not break the hand-over
            log.exception("consumer: a callback failed group=%s queues=%s", self.group, ", ".join(map(str, queues)))
            return False

    # ---- for the fetcher, on the event loop: none of these may block -----------------------------

    def delay_ms(self, queue: MessageQueue) -> int:
        """Return how long the messages of a queue wait after they were stored."""
        return 0

    def begins(self, queue: MessageQueue, lease: Grant) -> None:
        """Note that a queue is about to be read for the group."""

    def lost(self, queues: Sequence[MessageQueue]) -> None:
        """Note that queues were taken away."""

    def lease_over(self, queue: MessageQueue, epoch: int, error: MiniMQError) -> None:
        """Note that the broker of a queue does not know its lease."""
        if self._member is not None:
            self._member.lease_over(queue, epoch, error)

    def _shut_down(self) -> None:
        if self._member is not None:
            with suppress(Closed):  # so is the `Cluster`
                self._client.wait(self._member.leave)
        if self._offsets is not None:
            self._offsets.close()
        self._fetcher.close()
        self._client.close()


class ConsumerFace:
    """The facts of the consumer that has the work done. Base of what users have."""

    _reader: Consumer | PoppedSource

    @property
    def group(self) -> str:
        """The consumer group; empty for a reader that has none, and so neither leases nor commits."""
        return self._reader.group

    @property
    def client_id(self) -> str:
        """Name of this consumer among all clients."""
        return self._reader.client_id

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that are this consumer's now, sorted."""
        return self._reader.assignment

    @property
    def missed_messages(self) -> int:
        """Number of messages it has passed over, since they were deleted before their turn; see `offset_reset`."""
        return self._reader.missed_messages

    @property
    def filtered_messages(self) -> int:
        """Number of messages that were read but filtered out."""
        return self._reader.filtered_messages

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:  # noqa: D102 - below
        self._reader.state_saved(queues)

    state_saved.__doc__ = Consumer.state_saved.__doc__
