"""The reading side of a pull consumer: what is handed out, put back and committed between polls."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import Consumer
from minimq.receiving.consumer_options import ConsumerOptions, check_count, check_offset, check_timeout
from minimq.receiving.member_state import Grant
from minimq.receiving.received import ReceivedMessage
from minimq.routes.retry_schedule import RetrySchedule
from minimq.transport.start_position import Start, offset_or_start
from minimq_common.errors import Fenced, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

_TICK_S = 0.2
#: A poll, however short, gives name servers so long to tell where topics are, in seconds.
_ANSWER_S = 1.0


class PollBatch:
    """Messages of one poll that a loop hands out one by one, or that wait for somebody to take them all.

    A message counts as done when the user asks for the next one: he may have failed with it.

    Args:
        messages: in the order of the queue.

    Attributes:
        over: nothing more of it is to be handed out; the rest is read again.
    """

    __slots__ = ("_done", "_given", "_messages", "over")

    def __init__(self, messages: Sequence[ReceivedMessage]) -> None:
        self.over = False
        self._messages = messages
        self._given = 0
        self._done = 0

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Hand the messages out, until the batch is over."""
        for index, message in enumerate(self._messages):
            if self.over:
                return
            self._done, self._given = index, index + 1
            yield message
        self._done = len(self._messages)

    def take_all(self) -> list[ReceivedMessage]:
        """Hand all messages out at once: then they count as done together."""
        self._done = self._given = len(self._messages)
        return list(self._messages)

    @property
    def not_given(self) -> Sequence[ReceivedMessage]:
        """Those that nobody has seen yet."""
        return self._messages[self._given :]

    @property
    def not_done(self) -> Sequence[ReceivedMessage]:
        """Those that must not be committed: the one in hand, and those that nobody has seen yet."""
        return self._messages[self._done :]


class PullReader(Consumer):
    """The reading side of a pull consumer, as both faces use it: `minimq.PullConsumer` and `minimq.aio.PullConsumer`.

    Not thread-safe: one thread polls and runs the callbacks. Another one may close.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group; None for a reader without one.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins.
        auto_commit: commit what was in hand by itself.
        client_id: name among all clients; made up unless given.
        options: how to read.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
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
    ) -> None:
        super().__init__(nameserver, group, client_id=client_id, strategy=allocation, start=start, options=options)
        self._auto_commit = auto_commit and bool(self.group)
        self._commit_at = time.monotonic() + self._options.commit_interval_s
        #: Held while messages are handed out, and while closing: by then it is known what was.
        self._turn = threading.RLock()
        #: What the latest poll brought, if it is taken bit by bit.
        self._poll_batch: PollBatch | None = None
        self._is_assigned = False
        #: How long it is still tried to find the topics, since the first poll.
        self._starting: RetrySchedule | None = None

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: TagExpression = "*", where: str | None = None) -> None:
        """Read the queues of a topic that the group gives this member; see `minimq.PullConsumer.subscribe`."""
        if self._is_assigned:
            raise InvalidArgument("subscribe and assign exclude each other")
        self._subscribe(topic, expression, where)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues; see `minimq.PullConsumer.assign`."""
        self._process.check()
        if self._filters:
            raise InvalidArgument("subscribe and assign exclude each other")
        if self._options.model == "broadcasting":
            raise InvalidArgument("broadcasting reads all queues of the topics that are subscribed to")
        wanted = sorted(set(queues))
        for topic in sorted({queue.topic for queue in wanted}):
            self._routes.with_retries(partial(self._routes.route, topic), self._options.start_timeout_s)
        offsets = {queue: self._start_offset(queue) for queue in wanted}
        for queue in self._fetcher.queues:
            if queue not in offsets:
                self._fetcher.stop([queue])
        for queue in wanted:
            if queue not in self._fetcher.queues:
                self._fetcher.start(queue, Grant(0, offsets[queue], 0), tell=False)
        if not self._is_assigned:
            self._client.connection.submit(self._keep_time())
            self._is_assigned = True

    def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Go on elsewhere; see `minimq.PullConsumer.seek`."""
        self._process.check()
        wanted = offset_or_start(offset, "offset")
        if not isinstance(wanted, int):
            wanted = self._starts.at(queue, wanted)
        self._fetcher.seek(queue, wanted)
        if self._poll_batch is not None and not self._undone():
            self._poll_batch.over = True  # a loop goes on there, and not with what it has of before

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`. Raises `InvalidArgument`."""
        self._process.check()
        self._fetcher.pause(queues, paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again. Raises `InvalidArgument`."""
        self._process.check()
        self._fetcher.pause(queues, paused=False)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue has. Raises `InvalidArgument`."""
        self._process.check()
        positions = self._fetcher.positions()
        if queue not in positions:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        waiting = self._waiting()
        return waiting[0].queue_offset if waiting and waiting[0].queue == queue else positions[queue]

    # ---- reading --------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; see `minimq.PullConsumer.poll`."""
        self._check_poll(timeout, max_messages)
        with self._turn:
            return self._poll(timeout, max_messages)

    def ask(self, timeout: float, max_messages: int = 4096, given_up: Callable[[], bool] = lambda: False) -> PollBatch:
        """Poll for a caller that takes messages bit by bit, or may be gone when they come; see `poll`.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: most messages.
            given_up: says that nobody waits any more; `wake` has it asked.
        """
        self._check_poll(timeout, max_messages)
        with self._turn:
            batch = PollBatch(self._poll(timeout, max_messages, given_up))
            self._poll_batch = batch
            return batch

    def wake(self) -> None:
        """Let a poll that waits look whether anybody waits for it."""
        if not self._process.is_forked:
            self._fetcher.wake()

    def halt(self) -> None:
        """Let polls raise `Closed` from now on, also one that runs: the beginning of `close`."""
        if not self._process.is_forked:
            self._fetcher.halt()

    def _check_poll(self, timeout: float, max_messages: int) -> None:
        self._process.check()
        check_timeout(timeout)
        check_count("max_messages", max_messages)

    def _poll(
        self, timeout: float, max_messages: int, given_up: Callable[[], bool] = lambda: False
    ) -> list[ReceivedMessage]:
        deadline = time.monotonic() + timeout
        if self._member is None and not self._closed:
            if not self._filters and not self._is_assigned:
                raise InvalidArgument("nothing to read: subscribe to a topic or assign queues first")
            if self._filters and not self._join_by(deadline, given_up):
                return []
        self._put_back()
        while True:
            self._between_polls()
            messages = self._fetcher.take(max_messages, max(deadline - time.monotonic(), 0.0))
            if messages and self._filters:
                messages = self._wanted(messages)
            if messages or time.monotonic() >= deadline or given_up():
                return messages

    def _join_by(self, deadline: float, given_up: Callable[[], bool]) -> bool:
        """Join the group. Returns False when its topics are not found by the deadline, and may be later."""
        now = time.monotonic()
        if self._starting is None:
            self._starting = RetrySchedule(self._options.start_timeout_s, now)
        while True:
            try:
                self._look_up_topics(min(max(deadline - now, _ANSWER_S), self._options.request_timeout_s))
            except MiniMQError as error:
                now = time.monotonic()
                pause_s = self._starting.pause_s(error, now)
            else:
                self._join()
                return True
            self._fetcher.take(1, max(min(pause_s, deadline - now), 0.0))  # there is nothing to take: it waits
            now = time.monotonic()
            if now >= deadline or given_up():
                return False

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been returned."""
        self._process.check()
        return bool(self._fetcher.queues) and self._fetcher.at_end() and not self._waiting()

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is; see `minimq.PullConsumer.commit`."""
        self._process.check()
        if not self.group:
            raise InvalidArgument("a consumer without a group commits nothing: give it a group")
        for queue, offset in (offsets or {}).items():
            check_offset(queue, offset)
        if offsets is None:
            self._commit_all(automatic=False)
        else:
            self._fetcher.commits.record(offsets, retry_s=self._options.request_timeout_s)

    def close(self) -> None:
        """Commit what was in hand, leave the group, end; see `minimq.PullConsumer.close`. Idempotent."""
        if self._process.is_forked:
            return  # the group is for the process that made it
        self._fetcher.halt()
        with self._turn:
            if self._closed:
                return
            self._closed = True
            if self._poll_batch is not None:
                self._poll_batch.over = True
            try:
                self._revoke_all()
                if self._auto_commit:
                    self._commit_all(automatic=True)
            finally:
                self._shut_down()

    def release(self) -> None:
        """Leave the group and end without a commit or a callback: nobody has the consumer, or what it handed out."""
        self._fetcher.halt()
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._all_revoked = True
            self._shut_down()

    # ---- bit by bit -----------------------------------------------------------------------------

    def _put_back(self) -> None:
        """Put back what was read but not handed out to a loop that was left, or to a caller that is gone."""
        if self._poll_batch is not None:
            self._poll_batch.over = True  # first: what is given from now on comes twice, but nothing gets lost
            waiting = self._waiting()
            self._poll_batch = None
            if waiting:
                self._fetcher.give_back(waiting)

    def _waiting(self) -> Sequence[ReceivedMessage]:
        """Return what was read and given to nobody yet."""
        return self._of_poll_batch(lambda batch: batch.not_given)

    def _undone(self) -> dict[MessageQueue, int]:
        """Return from where on a queue must not be committed."""
        return {
            message.queue: message.queue_offset for message in self._of_poll_batch(lambda batch: batch.not_done)[:1]
        }

    def _of_poll_batch(self, part: Callable[[PollBatch], Sequence[ReceivedMessage]]) -> Sequence[ReceivedMessage]:
        messages = part(self._poll_batch) if self._poll_batch is not None else ()
        return messages if messages and self._fetcher.is_current(messages[0].queue) else ()

    # ---- between polls --------------------------------------------------------------------------

    def _between_polls(self) -> None:
        leaving = self._fetcher.leaving()
        now = time.monotonic()
        if leaving:
            positions = self._fetcher.positions()
            offsets = {queue: positions[queue] for queue in leaving if queue in positions}
            self._hand_back(offsets, commit=self._auto_commit)
        elif self._auto_commit and self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            try:
                self._fetcher.commits.record_all({}, automatic=True)
            except MiniMQError as error:
                # The broker may be about to come back, the queue another member's, or shorter at its new master, as the
                # next pull tells then: the next commit will tell.
                if not error.retriable and not isinstance(error, Fenced | InvalidArgument):
                    raise
                log.warning("consumer: not all is committed group=%s reason=%s", self.group, error)

    def _commit_all(self, *, automatic: bool) -> None:
        """Record how far all queues were read, and try for a while."""
        self._fetcher.commits.record_all(self._undone(), automatic=automatic, retry_s=self._options.request_timeout_s)

    def _start_offset(self, queue: MessageQueue) -> int:
        bounds = self._starts.bounds(queue)
        committed = self._starts.committed(self.group, queue) if self.group else None
        return self._starts.by_rule(queue, bounds) if committed is None else committed

    async def _keep_time(self) -> None:
        """Try failed pulls of assigned queues again, on the event loop of the connection."""
        while not self._closed:
            await asyncio.sleep(_TICK_S)
            try:
                self._fetcher.tick()
            except Exception:
                log.exception("consumer: failed, will try again")
