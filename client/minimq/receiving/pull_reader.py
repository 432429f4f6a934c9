"""The reading side of a pull consumer: what is handed out, put back and committed between polls."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from minimq.arguments import check_count, check_switch, queue_list, queue_offsets, waiting_s
from minimq.connection.client import ClusterClient
from minimq.connection.cluster import Cluster
from minimq.connection.loop_call import as_coroutine
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy
from minimq.receiving.assigned_queues import AssignedQueues
from minimq.receiving.commits import Progress
from minimq.receiving.consumer import Consumer
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.interceptor import ReceiveInterceptor, ReceiveInterceptors
from minimq.receiving.poll_batch import PollBatch
from minimq.receiving.pull_input import PullInput
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.waits import Waits
from minimq.routes.retry_schedule import RetrySchedule
from minimq.transport.client_log import client_logger
from minimq.transport.start_position import Start, offset_or_start
from minimq_common.errors import Fenced, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue, QueueData

log = client_logger(__name__)

#: A poll, however short, gives name servers so long to tell where topics are, in seconds.
_ANSWER_S = 1.0


class PullReader(Consumer):
    """The reading side of a pull consumer, as both faces use it: `minimq.PullConsumer` and `minimq.aio.PullConsumer`.

    Not thread-safe, and one poll at a time, which runs the callbacks; only `halt` may be called while it runs.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group; None for a reader without one.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins.
        auto_commit: commit what was in hand by itself.
        client_id: name among all clients; made up unless given.
        options: how to read.
        waits: how its coroutines wait.
        interceptors: stand around polls.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(  # noqa: PLR0913 - by name
        self,
        nameserver: str | Sequence[str] | Cluster | None,
        *,
        group: str | None,
        allocation: str | AllocationStrategy,
        start: Start,
        auto_commit: bool,
        client_id: str | None,
        options: ConsumerOptions,
        waits: Callable[[ClusterClient], Waits],
        interceptors: Sequence[ReceiveInterceptor] = (),
    ) -> None:
        check_switch("auto_commit", auto_commit)
        super().__init__(
            nameserver, group, client_id=client_id, strategy=allocation, start=start, options=options, waits=waits
        )
        self._interceptors = ReceiveInterceptors(interceptors, self.group, self.client_id)
        self._auto_commit = auto_commit and bool(self.group)
        self._commit_at = time.monotonic() + self._options.commit_interval_s
        #: A poll was interrupted, as by Ctrl-C: nobody has what it may have taken. To be set by no call, for there may
        #: be another signal.
        self.is_interrupted = False
        #: The automatic commit that is under way, or of which nobody has looked at the end.
        self._committing: asyncio.Task[None] | None = None
        #: What the latest poll brought, if it is taken bit by bit.
        self._poll_batch: PollBatch | None = None
        self._is_assigned = False
        self._assigned = AssignedQueues(self._client, self._fetcher, self._start_offset, self._waits)
        #: How long it is still tried to find the topics, since the first poll.
        self._starting: RetrySchedule | None = None

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: TagExpression = "*", where: str | None = None) -> None:
        """Read the queues of a topic that the group gives this member; see `minimq.PullConsumer.subscribe`."""
        self._check_open()
        if self._is_assigned:
            raise InvalidArgument("subscribe and assign exclude each other")
        self._subscribe(topic, expression, where)

    async def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        self._check_open()
        if self._filters:
            raise InvalidArgument("subscribe and assign exclude each other")
        if self._options.model == "broadcasting":
            raise InvalidArgument("broadcasting reads all queues of the topics that are subscribed to")
        wanted = sorted(set(queue_list("queues", queues)))
        for topic in sorted({queue.topic for queue in wanted}):
            await self._waits.result(partial(self._routes.find_within, topic, self._options.start_timeout_s))
        offsets = {queue: await self._waits.result(partial(self._start_offset, queue)) for queue in wanted}
        await self._assigned.read_exactly(offsets)
        self._is_assigned = True

    async def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Go on elsewhere; see `minimq.PullConsumer.seek`."""
        self._process.check()
        wanted = offset_or_start(offset, "offset")
        if not isinstance(wanted, int):
            wanted = await self._waits.result(partial(self._starts.at, queue, wanted))
        self._recover()
        await self._waits.result(as_coroutine(self._fetcher.seek, queue, wanted))
        if self._poll_batch is not None and not self._undone():
            self._poll_batch.over = True  # a loop goes on there, and not with what it has of before

    async def pause(self, queues: Iterable[MessageQueue], *, paused: bool) -> None:
        """Hand nothing out of these queues, or again. Raises `InvalidArgument`."""
        self._process.check()
        await self._waits.result(
            as_coroutine(partial(self._fetcher.pause, queue_list("queues", queues), paused=paused))
        )

    def position(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue has. Raises `InvalidArgument`."""
        self._process.check()
        self._recover()
        positions = self._fetcher.positions()
        if queue not in positions:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        waiting = self._waiting()
        return waiting[0].queue_offset if waiting and waiting[0].queue == queue else positions[queue]

    # ---- reading --------------------------------------------------------------------------------

    async def poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        if not self._interceptors:
            return await self._poll(timeout, max_messages)
        with self._interceptors.receive() as call:
            call.found(await self._poll(timeout, max_messages))
        return [*call.messages]

    async def _poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        self._process.check()
        check_count("max_messages", max_messages)
        deadline = time.monotonic() + waiting_s(timeout)
        if not self._has_joined and not self._closed:
            if not self._filters and not self._is_assigned:
                raise InvalidArgument("nothing to read: subscribe to a topic or assign queues first")
            if self._filters and not await self._join_by(deadline):
                return []
        self._recover()
        self._put_back()
        self._fetcher.hand_out.begin()
        while True:
            await self._between_polls()
            left_s = max(deadline - time.monotonic(), 0.0)
            messages = await self._waits.take(self._fetcher.hand_out, max_messages, left_s)
            if messages and self._filters:
                messages = self._wanted(messages)
            if messages or time.monotonic() >= deadline:
                return messages

    async def poll_batch(self, timeout: float = 1.0, max_messages: int = 4096) -> PollBatch:
        """Poll for a caller that takes messages bit by bit; see `poll`."""
        batch = PollBatch(await self.poll(timeout, max_messages))
        self._poll_batch = batch
        return batch

    def halt(self) -> None:
        """Let polls raise `Closed` from now on, also one that runs: the beginning of `close`."""
        if not self._process.is_forked:
            self._fetcher.halt()

    def _recover(self) -> None:
        if self.is_interrupted:
            self._client.run(self._fetcher.hand_out.take_back)
            self.is_interrupted = False

    async def _join_by(self, deadline: float) -> bool:
        now = time.monotonic()
        if self._starting is None:
            self._starting = RetrySchedule(self._options.start_timeout_s, now)
        while True:
            try:
                await self._look_up_topics(min(max(deadline - now, _ANSWER_S), self._options.request_timeout_s))
            except MiniMQError as error:
                now = time.monotonic()
                pause_s = self._starting.pause_s(error, now)
            else:
                await self._join()
                return True
            # There is nothing to take: it waits.
            await self._waits.take(self._fetcher.hand_out, 1, max(min(pause_s, deadline - now), 0.0))
            now = time.monotonic()
            if now >= deadline:
                return False

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been returned."""
        self._process.check()
        self._recover()
        return bool(self._fetcher.queues) and self._fetcher.at_end() and not self._waiting()

    async def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is; see `minimq.PullConsumer.commit`."""
        self._process.check()
        if not self.group:
            raise InvalidArgument("a consumer without a group commits nothing: give it a group")
        self._recover()
        if offsets is None:
            await self._commit_all(automatic=False)
        else:
            commits = self._fetcher.commits
            retry_s = self._options.request_timeout_s
            await self._waits.result(partial(commits.record, commits.progress(queue_offsets(offsets)), retry_s=retry_s))

    def transaction_input(self, poll: Callable[[float, int], Any]) -> PullInput:
        """Return what a transaction takes from this consumer; see `minimq.PullConsumer.transaction_input`."""
        self._process.check()
        if not self.group or self._options.model == "broadcasting":
            raise InvalidArgument("a transaction consumes for a group: give the consumer a group, without broadcasting")
        if self._auto_commit:
            raise InvalidArgument("the transaction commits what is consumed: make the consumer with auto_commit=False")
        return PullInput(self._client, self.group, self.client_id, self._fetcher, self._starts, poll)

    async def close(self) -> None:
        """Commit what was in hand, leave the group, end, after `halt`; see `minimq.PullConsumer.close`. Idempotent."""
        if self._closed:
            return
        self._closed = True
        if self._poll_batch is not None:
            self._poll_batch.over = True
        try:
            self._recover()
            self._revoke_all()
            if self._committing is not None:
                self._client.connection.call_soon(self._committing.cancel)  # the last one has more to say
            if self._auto_commit and self._fetcher.commits.has_any:
                await self._commit_all(automatic=True)
        finally:
            await self._waits.end(self._shut_down)

    def release(self) -> None:
        """Leave the group and end without a commit or a callback: nobody has the consumer, or what it handed out."""
        self._fetcher.halt()
        if not self._closed:
            self._closed = True
            self._all_revoked = True
            self._shut_down()

    def _shut_down(self) -> None:
        self._assigned.close()
        super()._shut_down()

    # ---- bit by bit -----------------------------------------------------------------------------

    def _put_back(self) -> None:
        if self._poll_batch is not None:
            self._poll_batch.over = True  # first: what is given from now on comes twice, but nothing gets lost
            waiting = self._waiting()
            self._poll_batch = None
            if waiting:
                self._fetcher.hand_out.give_back(waiting)

    def _waiting(self) -> Sequence[ReceivedMessage]:
        return self._of_poll_batch(lambda batch: batch.not_given)

    def _undone(self) -> dict[MessageQueue, int]:
        return {
            message.queue: message.queue_offset for message in self._of_poll_batch(lambda batch: batch.not_done)[:1]
        }

    def _of_poll_batch(self, part: Callable[[PollBatch], Sequence[ReceivedMessage]]) -> Sequence[ReceivedMessage]:
        messages = part(self._poll_batch) if self._poll_batch is not None else ()
        return messages if messages and self._fetcher.hand_out.is_current(messages[0].queue) else ()

    # ---- between polls --------------------------------------------------------------------------

    async def _between_polls(self) -> None:
        self._look_at_commit()
        await self._assigned.begin_anew()
        leaving = self._fetcher.leaving()
        now = time.monotonic()
        if leaving:
            positions = self._fetcher.positions()
            offsets = {queue: positions[queue] for queue in leaving if queue in positions}
            await self._hand_back(offsets, commit=self._auto_commit)
        elif self._auto_commit and self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            if self._committing is None:
                self._client.connection.call_soon(self._begin_commit, self._fetcher.commits.progress_of_all({}))

    def _begin_commit(self, progress: Progress) -> None:
        if self._committing is None:
            self._committing = asyncio.create_task(self._fetcher.commits.record_all(progress, automatic=True))
            # So that asyncio does not log its error: `_look_at_commit` tells it, unless the consumer is closed before.
            self._committing.add_done_callback(lambda ended: ended.cancelled() or ended.exception())

    def _look_at_commit(self) -> None:
        committing = self._committing
        if committing is None or not committing.done():
            return
        self._committing = None
        error = None if committing.cancelled() else committing.exception()
        if error is None:
            return
        # The broker may be about to come back, the queue another member's, or shorter at its new master, as the
        # next pull tells then: the next commit will tell.
        if not isinstance(error, MiniMQError) or not (error.retriable or isinstance(error, Fenced | InvalidArgument)):
            raise error
        log.warning("consumer: not all is committed group=%s reason=%s", self.group, error)

    async def _commit_all(self, *, automatic: bool) -> None:
        commits = self._fetcher.commits
        retry_s = self._options.request_timeout_s
        record_all = partial(commits.record_all, commits.progress_of_all(self._undone()))
        await self._waits.result(partial(record_all, automatic=automatic, retry_s=retry_s))

    async def _start_offset(self, queue: MessageQueue) -> int:
        bounds = await self._starts.bounds(queue)
        committed = await self._starts.committed(self.group, queue) if self.group else None
        return await self._starts.by_rule(queue, bounds) if committed is None else committed

    def _lease_over(self, queue: MessageQueue, epoch: int, error: MiniMQError) -> None:
        super()._lease_over(queue, epoch, error)
        if self._is_assigned:
            self._assigned.suspect(queue.topic)
