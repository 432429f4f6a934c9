"""The implementation of pull consumers: polls, and the commits and revocations between them."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minimq.arguments import check_count, check_switch, queue_list, queue_offsets, waiting_s
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import as_coroutine
from minimq.connection.retry_schedule import RetrySchedule
from minimq.consuming.consumer import Consumer, Found
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.interceptor import ReceiveInterceptor, ReceiveInterceptors
from minimq.consuming.member_state import Grant
from minimq.consuming.message_filter import TagExpression
from minimq.consuming.start_position import Start, offset_or_start
from minimq.features.transactions.transaction_inputs import PullInput
from minimq.rebalance import AllocationStrategy
from minimq_common.errors import Fenced, InvalidArgument, MinimqError, TopicNotFound
from minimq_common.model import MessageQueue, QueueData
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

#: Messages per poll of a `for` loop: enough to make its cost negligible, few enough to give other queues their turn.
ITERATED_MESSAGES = 128
#: Minimum timeout of a route lookup in seconds, even in a shorter poll.
_ANSWER_S = 1.0
_TICK_S = 0.2
#: Maximum time of the last commit, in seconds.
_CLOSE_S = 3.0


class PullReader(Consumer):
    """The implementation that `minimq.PullConsumer` and `minimq.aio.PullConsumer` share.

    Not thread-safe: one poll at a time, which also runs the callbacks. Only `halt` may be called during a poll.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        *,
        group: str | None,
        allocation: str | AllocationStrategy,
        start: Start,
        auto_commit: bool,
        client_id: str | None,
        options: ConsumerOptions,
        interceptors: Sequence[ReceiveInterceptor] = (),
    ) -> None:
        check_switch("auto_commit", auto_commit)
        super().__init__(nameserver, group, client_id=client_id, strategy=allocation, start=start, options=options)
        self._interceptors = ReceiveInterceptors(interceptors, self.group, self.client_id)
        self._auto_commit = auto_commit and bool(self.group)
        self._commit_at = time.monotonic() + self._options.commit_interval_s
        #: The latest automatic commit until `_check_commit` has read its outcome. Belongs to the event loop.
        self._committing: asyncio.Task[None] | None = None
        #: Identifies the poll whose messages a `for` loop yields; replaced to make the loop poll again.
        self.turn = object()
        #: Messages of the latest poll. Keeps their batches alive, which `poll_arrow` needs whole.
        self._found: Found | None = None
        self._is_assigned = False
        #: Calls `Fetcher.tick` for assigned queues.
        self._ticking: asyncio.Task[None] | None = None
        #: Topics of assigned queues whose deletion was reported.
        self._deleted: set[str] = set()
        #: Retries of the topic lookup; their deadline counts from the first poll.
        self._starting: RetrySchedule | None = None

    @property
    def is_ready(self) -> bool:
        return self._is_assigned or super().is_ready

    # ---- subscription and assignment ------------------------------------------------------------

    def subscribe(self, topic: str, expression: TagExpression, where: str | None) -> None:
        """Subscribe to a topic, before the first poll; excludes `assign`."""
        self.check_open()
        if self._is_assigned:
            raise InvalidArgument("subscribe and assign exclude each other")
        super().subscribe(topic, expression, where)

    async def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        self.check_open()
        if self.filters:
            raise InvalidArgument("subscribe and assign exclude each other")
        if self._options.model == "broadcasting":
            raise InvalidArgument("broadcasting reads all queues of the topics that are subscribed to")
        wanted = sorted(set(queue_list("queues", queues)))
        await self._on_loop(partial(self._assign, wanted))
        self._is_assigned = True

    async def _assign(self, queues: Sequence[MessageQueue]) -> None:
        for topic in sorted({queue.topic for queue in queues}):
            await self._routes.find_within(topic, self._options.start_timeout_s)
        offsets = {queue: await self._start_offset(queue) for queue in queues}
        self._fetcher.stop(set(self._fetcher.queues) - offsets.keys())
        self._fetcher.expect(len(offsets))
        for queue in sorted(offsets.keys() - set(self._fetcher.assignment)):
            self._fetcher.start(queue, Grant(0, offsets[queue], 0), tell=False)
        self._deleted.clear()
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._keep_time())

    async def _keep_time(self) -> None:
        while True:
            await asyncio.sleep(_TICK_S)
            try:
                self._fetcher.tick()
            except Exception:
                log.exception("consumer: failed, will try again")

    async def seek(self, queue: MessageQueue, offset: Start) -> None:
        await self._on_loop(partial(self._seek, queue, offset_or_start(offset, "offset")))
        if self._found is not None and self._found.handed.queue == queue:
            self.turn = object()  # a `for` loop must not yield messages from before the seek

    async def _seek(self, queue: MessageQueue, wanted: int | broker_pb2.StartPosition) -> None:
        self._fetcher.seek(queue, wanted if isinstance(wanted, int) else await self._starts.at(queue, wanted))

    async def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Stop or resume the delivery of these queues. Raises `InvalidArgument`."""
        await self._on_loop(as_coroutine(partial(self._fetcher.pause, queue_list("queues", queues), paused=paused)))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue. Raises `InvalidArgument`."""
        self._process.check()
        return self._fetcher.assigned(queue).next_offset

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float, max_messages: int) -> Found | None:
        if not self._interceptors:
            return await self._poll(timeout, max_messages)
        with self._interceptors.receive() as call:
            found = await self._poll(timeout, max_messages)
            call.found(found.messages if found is not None else [])
        return found and found._replace(messages=[*call.messages])

    async def _poll(self, timeout: float, max_messages: int) -> Found | None:
        self._process.check()
        check_count("max_messages", max_messages)
        deadline = time.monotonic() + waiting_s(timeout)
        if self._member is None and not self._closed:
            if not self.filters and not self._is_assigned:
                raise InvalidArgument("nothing to read: subscribe to a topic or assign queues first")
            if self.filters and not await self._join_by(deadline):
                return None
        self.turn = object()
        self._found = None
        self._fetcher.finish()
        while True:
            await self._between_polls()
            if self._fetcher.events.are_there:
                await self._announce_all()
            found = self._found = await self._take(max_messages, max(deadline - time.monotonic(), 0.0))
            if found is not None or (time.monotonic() >= deadline and not self._fetcher.events.are_there):
                return found

    def halt(self) -> None:
        """Make the running poll and all later ones raise `Closed`: the first step of `close`."""
        if not self._process.is_void:
            self._fetcher.halt()

    async def _join_by(self, deadline: float) -> bool:
        now = time.monotonic()
        if self._starting is None:
            self._starting = RetrySchedule(self._options.start_timeout_s, now)
        while True:
            try:
                limit_s = min(max(deadline - now, _ANSWER_S), self._options.request_timeout_s)
                await self._on_loop(partial(self._look_up_topics, limit_s))
            except MinimqError as error:
                now = time.monotonic()
                pause_s = self._starting.pause_s(error, now)
            else:
                await self._on_loop(self._join)
                return True
            # Nothing is read yet, so this only waits.
            await self._take(1, max(min(pause_s, deadline - now), 0.0))
            now = time.monotonic()
            if now >= deadline:
                return False

    async def _look_up_topics(self, timeout_s: float) -> None:
        for topic in self.filters:
            await self._routes.find(topic, timeout_s)

    def at_end(self) -> bool:
        """Return whether polls have returned everything that was stored at the brokers' latest answers."""
        self._process.check()
        return bool(self._fetcher.queues) and self._fetcher.at_end()

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        if not self.group:
            raise InvalidArgument("a consumer without a group commits nothing: give it a group")
        if isinstance(self._fetcher.rejection, Fenced):
            raise self._fetcher.rejection.with_traceback(None)
        if offsets is None:
            await self._on_loop(partial(self._record_all, automatic=False))
        else:
            checked, retry_s = queue_offsets(offsets), self._options.request_timeout_s
            await self._on_loop(partial(self._record, checked, retry_s=retry_s))

    def transaction_input(self, poll: Callable[[float, int], Any]) -> PullInput:
        self._process.check()
        if not self.group or self._options.model == "broadcasting":
            raise InvalidArgument("a transaction consumes for a group: give the consumer a group, without broadcasting")
        if self._auto_commit:
            raise InvalidArgument("the transaction commits what is consumed: make the consumer with auto_commit=False")
        return PullInput(self._client, self.group, self.client_id, self._fetcher, self._starts, poll)

    async def close(self) -> None:
        """Revoke all queues, and commit them with `auto_commit`. Call `halt` before, `drop` afterwards. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self.turn = object()
        try:
            await self._revoke_all()
            if self._committing is not None:
                self._client.connection.call_soon(self._committing.cancel)  # the last commit supersedes it
            if self._auto_commit and self._fetcher.commits.has_any:
                await self._on_loop(partial(self._record_all, automatic=True, retry_s=_CLOSE_S))
        except MinimqError as error:  # the messages are redelivered
            log.warning("consumer: last commit failed group=%s error=%s", self.group, error)

    def release(self) -> None:
        """Leave the group without a commit or a callback: the user's object was dropped without `close`."""
        self._fetcher.halt()
        if not self._closed:
            self._closed = True
            self._all_revoked = True
            self.drop()

    def drop(self) -> None:
        """Leave the group and close all connections; blocks until done. Idempotent."""
        if self._ticking is not None:
            self._client.connection.call_soon(self._ticking.cancel)
        self._shut_down()

    # ---- between polls --------------------------------------------------------------------------

    async def _between_polls(self) -> None:
        self._check_commit()
        now = time.monotonic()
        if self._fetcher.has_leaving:
            offsets = await self._on_loop(as_coroutine(self._fetcher.leaving))
            await self._revoke_and_release(offsets, commit=self._auto_commit)
        elif self._auto_commit and self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            await self._on_loop(as_coroutine(self._begin_commit))  # before further messages are delivered

    def _begin_commit(self) -> None:
        if self._committing is None:
            commits = self._fetcher.commits
            self._committing = asyncio.create_task(commits.record_all(commits.progress_of_all(), automatic=True))
            # Retrieves the error, or asyncio would log it: `_check_commit` reports it unless `close` comes first.
            self._committing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def _check_commit(self) -> None:
        committing = self._committing
        if committing is None or not committing.done():
            return
        self._committing = None
        error = None if committing.cancelled() else committing.exception()
        if error is None:
            return
        # These may resolve themselves: the broker comes back, another member has the queue, or the log of its new
        # master is shorter, which the next pull reports. Otherwise the next commit fails again.
        if not isinstance(error, MinimqError) or not (error.retriable or isinstance(error, Fenced | InvalidArgument)):
            raise error
        log.warning("consumer: commit incomplete group=%s reason=%s", self.group, error)

    async def _record_all(self, *, automatic: bool, retry_s: float = math.inf) -> None:
        commits = self._fetcher.commits
        retry_s = min(retry_s, self._options.request_timeout_s)
        await commits.record_all(commits.progress_of_all(), automatic=automatic, retry_s=retry_s)

    async def _start_offset(self, queue: MessageQueue) -> int:
        bounds = await self._starts.bounds(queue)
        committed = await self._starts.committed(self.group, queue) if self.group else None
        return await self._starts.at(queue, bounds=bounds) if committed is None else committed

    def lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        super().lease_over(queue, epoch, error)
        if self._is_assigned and queue.topic not in self._deleted:
            self._deleted.add(queue.topic)
            reason = f"topic {queue.topic} was deleted while this consumer read it"
            self._fetcher.failed(TopicNotFound(f"{reason}: create it again, and assign its queues again"))
