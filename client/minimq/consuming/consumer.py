"""Consumers that read queues by offset: subscriptions, group membership, commits."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from minimq.arguments import check_text
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.offline_brokers import describe_offline
from minimq.connection.replica_selector import ReplicaSelector
from minimq.connection.retry_schedule import RetrySchedule
from minimq.consuming.assigner import Assigner
from minimq.consuming.broker_sessions import Membership
from minimq.consuming.commits import OffsetLookup
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.fetcher import Fetcher
from minimq.consuming.group_member import GroupMember
from minimq.consuming.group_start import GroupStart
from minimq.consuming.member_state import Grant
from minimq.consuming.message_filter import ALL_MESSAGES, MessageFilter
from minimq.consuming.read_ahead import ReadyBatches
from minimq.consuming.start_position import Start, start_position
from minimq.rebalance import AllocationStrategy, allocation_strategy
from minimq_common.errors import (
    Closed,
    CorruptBatch,
    Fenced,
    InternalError,
    InvalidArgument,
    MinimqError,
    TopicNotFound,
)
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id, check_group, check_topic, dead_letter_topic
from minimq_common.wire.protocol_bounds import MAX_AGREED, MAX_FILTER, MAX_SUBSCRIPTIONS, MAX_TAGS
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)
#: Warns, when a group begins to read, about brokers that are offline, whose queues are not read.
OFFLINE_LOG = logging.getLogger("minimq.consuming.offline")

#: Minimum timeout of a route lookup in seconds, even in a shorter poll.
_ANSWER_S = 1.0
_TICK_S = 0.2
#: Maximum time of the last commit, in seconds.
_CLOSE_S = 3.0
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


class Consumer:
    """Reads queues by offset, assigned or of a group: the loop side of pull consumers and leased push consumers.

    Lives on the event loop of the connection, except for what is marked.
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
        broadcasting: MakeAssigner | None = None,
    ) -> None:
        if options.broadcast_dir is not None and client_id is None:
            raise InvalidArgument("broadcasting needs a client_id that stays the same: the offsets are kept under it")
        if group is not None:
            check_text("group", group)
        self.group = "" if group is None else check_group(group)
        self.client_id = new_client_id() if client_id is None else checked_client_id(client_id)
        self.options = options
        self._strategy = _strategy(strategy)
        self._start = start_position(start)
        self.client = ClusterClient(nameserver, credentials=options.credentials)
        self._process = self.client.connection.process
        self._routes = self.client.routes
        self._places = ReplicaSelector(self.client)
        self._group_start = GroupStart(self.client, self.group, self._start, options.request_timeout_s)
        self.starts = OffsetLookup(self._places, self._start, options.request_timeout_s)
        self.fetcher = Fetcher(
            self.client, self._places, self.group, self.client_id, options, self._tag_hashes, self._lease_over
        )
        #: By topic.
        self.filters: dict[str, MessageFilter] = {}
        self.otherwise = ALL_MESSAGES  # of assigned queues
        #: Number of messages that arrived and did not match the filter.
        self.dropped = 0
        self._broadcasting = broadcasting
        self.assigner: Assigner | None = None
        self.is_closed = False
        #: Retries of the topic lookup; their deadline counts from the first poll.
        self._starting: RetrySchedule | None = None
        self._committing: asyncio.Task[None] | None = None
        #: Queues were chosen by `assign`.
        self.is_assigned = False
        #: Calls `Fetcher.tick` for assigned queues.
        self._ticking: asyncio.Task[None] | None = None
        #: Topics of assigned queues whose deletion was reported.
        self._deleted: set[str] = set()

    # ---- on any thread --------------------------------------------------------------------------

    @property
    def assignment(self) -> list[MessageQueue]:
        """The queues that this consumer reads now, sorted."""
        self._process.check()
        return [queue for queue in self.fetcher.assignment if not self._routes.is_deleted(queue.topic)]

    @property
    def is_ready(self) -> bool:
        """True once a broker has accepted the consumer into its group, and every position is fixed."""
        is_fixed = self._group_start.is_decided or self.options.broadcast_dir is not None
        return self.is_assigned or (is_fixed and self.assigner is not None and self.assigner.was_taken)

    @property
    def missed_messages(self) -> int:
        return self.fetcher.missed_messages

    @property
    def filtered_messages(self) -> int:
        return self.dropped + self.fetcher.passed_over

    def check_open(self) -> None:
        """Raise `Closed` after `close`, and in a fork."""
        self._process.check()
        if self.is_closed:
            raise Closed("the consumer is closed")
        self.client.check_open()

    def subscribe(self, topic: str, wanted: MessageFilter) -> None:
        """Subscribe to a topic, before the first message is requested."""
        self.check_open()
        if self.is_assigned:
            raise InvalidArgument("subscribe and assign exclude each other")
        if not self.group:
            raise InvalidArgument(
                "a consumer without a group can only be assigned queues: give it a group to subscribe"
            )
        if self.assigner is not None:
            raise InvalidArgument("subscribe to all topics before the first message is asked for")
        self.filters = check_subscriptions(self.group, {**self.filters, check_topic(topic): wanted})

    def open(self, handed: ReadyBatches, *, keeps_batches: bool = False) -> None:
        """Decode and filter messages, on a thread that may block. Raises what makes them unreadable."""
        if handed.count >= 0:  # `off_loop` failed before, and ran it later all the same
            return
        try:
            handed.open(self.filters.get(handed.queue.topic, self.otherwise), keeps_batches=keeps_batches)
        except (CorruptBatch, InvalidArgument) as error:
            self.fetcher.damaged(handed, error)
            raise
        self.dropped += handed.dropped

    # ---- the group ------------------------------------------------------------------------------

    async def join(self) -> None:
        """Join the group, or begin broadcasting."""
        if self.assigner is not None:
            return
        if self.options.broadcast_dir is not None:
            if self._broadcasting is None:
                raise InvalidArgument("this consumer cannot broadcast: leave out broadcast_dir")
            self.assigner = self._broadcasting(self)
        else:
            filters = {topic: wanted.text for topic, wanted in self.filters.items()}
            self._group_start.begin(filters.keys())
            membership = Membership(self.group, self.client_id, filters, self._start)
            self.fetcher.commits.leased = True
            self.assigner = GroupMember(
                self.client, self._places, membership, self._strategy, self.fetcher, self._group_start, self.options
            )
        self.assigner.start()
        for route in filter(None, map(self._routes.known, self.filters)):
            for line in describe_offline((each for each in route.offline if each.queues), "not read until it is back"):
                OFFLINE_LOG.warning(
                    "consumer: broker offline group=%s topic=%s state=%s", self.group, route.topic, line
                )

    async def join_by(self, deadline: float) -> bool:
        """Look up the topics and join, with retries for `start_timeout_s` in all; return whether that is done."""
        now = time.monotonic()
        if self._starting is None:
            self._starting = RetrySchedule(self.options.start_timeout_s, now)
        while True:
            try:
                limit_s = min(max(deadline - now, _ANSWER_S), self.options.request_timeout_s)
                for topic in self.filters:
                    await self._routes.find(topic, limit_s)
            except MinimqError as error:
                now = time.monotonic()
                pause_s = self._starting.pause_s(error, now)
            else:
                await self.join()
                return True
            await self.fetcher.wait(1, (), max(min(pause_s, deadline - now), 0.0))
            self.fetcher.raise_error()
            now = time.monotonic()
            if now >= deadline:
                return False

    async def release_queues(self, offsets: Mapping[MessageQueue, int], *, commit: bool) -> None:
        """Commit revoked queues, if `commit` is set, and release them."""
        if commit:
            try:
                await self.record(offsets, automatic=True)
            except TopicNotFound as error:  # `DeletedTopics` reports the deletion
                log.debug("consumer: nothing to commit group=%s reason=%s", self.group, error)
            except MinimqError as error:  # the next owner rereads a few messages
                log.warning(
                    "consumer: queues not committed group=%s queues=%d reason=%s", self.group, len(offsets), error
                )
        epochs = self.fetcher.stop(offsets)
        if self.assigner is not None:
            self.assigner.release(epochs)

    # ---- assigned queues ------------------------------------------------------------------------

    async def assign(self, queues: Sequence[MessageQueue]) -> None:
        """Read exactly these queues."""
        for topic in sorted({queue.topic for queue in queues}):
            await self._routes.find_within(topic, self.options.start_timeout_s)
        offsets = {queue: await self._start_offset(queue) for queue in queues}
        self.fetcher.stop(set(self.fetcher.queues) - offsets.keys())
        self.fetcher.expect(len(offsets))
        for queue in sorted(offsets.keys() - set(self.fetcher.assignment)):
            self.fetcher.start(queue, Grant(0, offsets[queue], 0), tell=False)
        self._deleted.clear()
        self.is_assigned = True
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._keep_time())

    async def _start_offset(self, queue: MessageQueue) -> int:
        bounds = await self.starts.bounds(queue)
        committed = await self.starts.committed(self.group, queue) if self.group else None
        return await self.starts.at(queue, bounds=bounds) if committed is None else committed

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self.fetcher.tick()
            except Exception:
                log.exception("consumer: failed, will try again")

    async def seek(self, queue: MessageQueue, wanted: int | broker_pb2.StartPosition) -> None:
        self.fetcher.seek(queue, wanted if isinstance(wanted, int) else await self.starts.at(queue, wanted))

    # ---- commits --------------------------------------------------------------------------------

    async def record(
        self, offsets: Mapping[MessageQueue, int], *, automatic: bool = False, retry_s: float = 0.0
    ) -> None:
        """Commit offsets; see `Commits.record`."""
        commits = self.fetcher.commits
        await commits.record(commits.progress(offsets), automatic=automatic, retry_s=retry_s)

    async def record_all(self, *, automatic: bool = False, retry_s: float = 0.0) -> None:
        """Commit the positions of all queues; see `Commits.record_all`."""
        commits = self.fetcher.commits
        await commits.record_all(commits.progress_of_all(), automatic=automatic, retry_s=retry_s)

    def begin_commit(self) -> None:
        """Begin an automatic commit, unless one is under way."""
        if self._committing is None:
            self._committing = asyncio.create_task(self.record_all(automatic=True))
            self._committing.add_done_callback(self._committed)

    def _committed(self, committing: asyncio.Task[None]) -> None:
        self._committing = None
        error = None if committing.cancelled() else committing.exception()
        if error is None:
            return
        # These may resolve themselves: the broker comes back, another member has the queue, or the log of its new
        # master is shorter, which the next pull reports. Otherwise the next commit fails again.
        if isinstance(error, MinimqError) and (error.retriable or isinstance(error, Fenced | InvalidArgument)):
            log.warning("consumer: commit incomplete group=%s reason=%s", self.group, error)
        else:
            self.fetcher.failed(error if isinstance(error, MinimqError) else InternalError(f"commit: {error!r}"))

    async def record_last(self) -> None:
        """Commit the positions of all queues before the consumer leaves."""
        if self._committing is not None:
            self._committing.cancel()  # superseded
        if self.fetcher.commits.has_any:
            try:
                await self.record_all(automatic=True, retry_s=min(_CLOSE_S, self.options.request_timeout_s))
            except MinimqError as error:  # the messages are redelivered
                log.warning("consumer: last commit failed group=%s error=%s", self.group, error)

    # ---- called by the fetcher ------------------------------------------------------------------

    def _tag_hashes(self, topic: str) -> Sequence[int]:
        return self.filters.get(topic, self.otherwise).tag_hashes

    def _lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        if self.assigner is not None:
            self.assigner.lease_over(queue, epoch, error)
        elif self.is_assigned and queue.topic not in self._deleted:
            self._deleted.add(queue.topic)
            reason = f"topic {queue.topic} was deleted while this consumer read it"
            self.fetcher.failed(TopicNotFound(f"{reason}: create it again, and assign its queues again"))

    # ---- the end, on any thread -----------------------------------------------------------------

    def release(self) -> None:
        """Leave the group without a commit or a callback: the user's object was dropped without `close`."""
        self.fetcher.halt()
        if not self.is_closed:
            self.is_closed = True
            self.shut_down()

    def shut_down(self) -> None:
        """Leave the group and close all connections; blocks until done. Idempotent."""
        call_soon = self.client.connection.call_soon
        call_soon(self._group_start.close)
        if self._ticking is not None:
            call_soon(self._ticking.cancel)
        if self.assigner is not None:
            with suppress(Closed):  # the `Cluster` was closed before
                self.client.wait(self.assigner.leave)
            self.assigner.close()
        self.fetcher.close()
        self.client.close()


#: Makes what gives a consumer its queues.
MakeAssigner = Callable[[Consumer], Assigner]
