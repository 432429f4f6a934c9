"""The pull consumer, whose caller polls messages on its own thread or asyncio loop.

A poll has three parts. On the event loop of the connection, it waits for messages. The caller runs the callbacks of
the user and decodes messages. Back on the loop, revoked queues are committed and released. The caller's parts are plain
functions of `BasePullConsumer`; threads and asyncio differ only in how they wait for the loop.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import partial
from typing import Any, Unpack

from minimq.arguments import check_count, check_switch, queue_list, queue_offsets, waiting_s
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.consuming.callbacks import QueueCallbacks
from minimq.consuming.consumer import Consumer, MakeAssigner
from minimq.consuming.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.consuming.interceptor import ConsumerCall, ReceiveInterceptor, ReceiveInterceptors
from minimq.consuming.read_ahead import ReadyBatches
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start, offset_or_start
from minimq.consuming.subscriber import BaseConsumer
from minimq.options import build_options
from minimq.rebalance import AllocationStrategy
from minimq_common.errors import Closed, Fenced, InvalidArgument
from minimq_common.model import MessageQueue, QueueData

#: Messages per poll of a `for` loop: enough to make its cost negligible, few enough to give other queues their turn.
ITERATED_MESSAGES = 128


class BasePullConsumer(BaseConsumer):
    """The part of a pull consumer that is the same for threads and asyncio: what runs where the caller is."""

    _reader: Consumer
    poll: Callable[..., Any]
    #: Makes the lock that a poll and `close` hold, so that `close` knows all returned messages.
    _make_turn: Callable[[], Any]
    #: Gives consumers all queues, with `broadcast_dir`.
    _broadcasting: MakeAssigner | None = None

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str | None = None,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        auto_commit: bool = True,
        client_id: str | None = None,
        interceptors: Sequence[ReceiveInterceptor] = (),
        **options: Unpack[ConsumerChanges],
    ) -> None:
        check_switch("auto_commit", auto_commit)
        chosen = self._options = build_options(ConsumerOptions, options, type(self))
        reader = self._reader = Consumer(
            nameserver,
            group,
            client_id=client_id,
            strategy=allocation,
            start=start,
            options=chosen,
            broadcasting=type(self)._broadcasting,
        )
        self._client, self._fetcher = reader.client, reader.fetcher
        self._callbacks = QueueCallbacks(chosen, reader.group)
        intercepted = ReceiveInterceptors(interceptors, reader.group, reader.client_id)
        self._around_poll: Callable[[], AbstractContextManager[ConsumerCall | None]]
        self._around_poll = intercepted.receive if intercepted else nullcontext
        self._auto_commit = auto_commit and bool(reader.group)
        self._commit_at = time.monotonic() + chosen.commit_interval_s
        #: Keep whole batches next to their messages, for `poll_arrow`.
        self._keeps_batches = False
        #: The messages of the latest poll come from here, while any of them are in flight.
        self._taken: ReadyBatches | None = None
        #: Number of the latest poll: a `for` loop stops yielding the messages of an earlier one.
        self._turns = 0
        #: A `for` loop yields the messages of the latest poll, and finishes them one by one.
        self._is_iterated = False
        self._turn = self._make_turn()
        self._finalizer = Finalizer(self, reader.release)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue. Raises `InvalidArgument`."""
        self._client.connection.process.check()
        return self._fetcher.assigned(queue).next_offset

    @property
    def is_ready(self) -> bool:
        """True once a broker has accepted it into its group, and every position is fixed.

        Until then polls return nothing, or raise the reason. With `start="latest"`, no message that is sent afterwards
        is skipped.
        """
        return self._reader.is_ready

    def at_end(self) -> bool:
        """Return whether polls have returned everything that was stored at the brokers' latest answers."""
        self._client.connection.process.check()
        return bool(self._fetcher.queues) and self._fetcher.at_end()

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Report that your state of these queues is saved, so that other members may have the queues.

        With `handover_timeout_s`, others get a queue that this member has left only then, or when that time is over.
        The state also counts as saved when `on_revoked` returns, unless it returns `False`. Thread-safe.

        Raises:
            InvalidArgument: topics were not subscribed to.
        """
        self._client.connection.process.check()
        if self._reader.assigner is None:
            raise InvalidArgument("only a member of a group has state to hand over: subscribe first")
        self._reader.assigner.mark_state_saved(queues)

    # ---- the caller's parts of a poll -----------------------------------------------------------

    def _begin_poll(self, timeout: float, max_messages: int) -> float:
        """Check a poll, count what the last one has returned as finished, and return the deadline."""
        reader = self._reader
        self._client.connection.process.check()
        check_count("max_messages", max_messages)
        now = time.monotonic()
        deadline = now + waiting_s(timeout)
        if reader.assigner is None and not (reader.is_assigned or reader.filters or reader.is_closed):
            raise InvalidArgument("nothing to read: subscribe to a topic or assign queues first")
        self._finish(iterated=True)
        self._turns += 1
        if self._auto_commit and self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            self._client.connection.call_soon(reader.begin_commit)
        return deadline

    def _must_join(self) -> bool:
        reader = self._reader
        return reader.assigner is None and not reader.is_assigned and not reader.is_closed

    def _attend(self) -> Mapping[MessageQueue, int]:
        """Raise errors and run callbacks; return the positions of revoked queues, which are then to be released."""
        fetcher = self._fetcher
        fetcher.raise_error()
        if fetcher.changes:
            self._callbacks.announce(fetcher.changes)
        if not fetcher.revoked_readers:
            return {}
        leaving = fetcher.leaving()
        self._revoke([*leaving])
        return leaving

    def _revoke(self, queues: Sequence[MessageQueue]) -> None:
        assigner = self._reader.assigner
        if assigner is not None and self._callbacks.revoke(queues) and self._options.handover_timeout_s:
            assigner.mark_state_saved(queues)

    def _take(self, max_messages: int) -> list[ReceivedMessage]:
        """Return the next messages that are here, decoded and filtered."""
        fetcher = self._fetcher
        while not fetcher.used_up and (taken := fetcher.next_ready()) is not None:
            if taken.count < 0:
                self._reader.open(taken, keeps_batches=self._keeps_batches)
            if taken.count:  # none if the filter or compaction has dropped all of them
                fetcher.end_turn()
                self._taken = taken
                return taken.messages[taken.done : taken.done + max_messages]
        return []

    def _deliver(
        self, messages: list[ReceivedMessage], call: ConsumerCall | None = None, *, iterated: bool = False
    ) -> list[ReceivedMessage]:
        """Give messages to the user, or to a `for` loop. They count as finished when the next call begins."""
        if call is not None:
            call.found(messages)
        if self._taken is not None and messages:
            self._is_iterated = iterated
            if not iterated:  # `_one_by_one` counts them
                self._taken.returned += len(messages)
        elif not messages:
            self._fetcher.raise_too_many_streams()
        return messages if call is None else [*call.messages]

    def _undeliver(self) -> None:
        """Take back the messages of a poll that was interrupted: the next one returns them."""
        if self._taken is not None:
            self._taken.returned = self._taken.done

    def _finish(self, *, iterated: bool = False) -> None:
        """Count the messages of the latest poll as finished; those of a `for` loop only if `iterated` is set."""
        taken = self._taken
        if taken is None or (self._is_iterated and not iterated):
            return
        self._is_iterated = False
        self._fetcher.finish(taken)
        if taken.is_over:
            self._taken = None

    def _one_by_one(self, messages: Sequence[ReceivedMessage]) -> Iterator[ReceivedMessage]:
        """Yield the messages of the latest poll; each is finished when the next one is requested."""
        taken, turn = self._taken, self._turns
        if taken is None or not messages:
            return
        end = taken.done + len(messages)
        for message in messages:
            taken.done = taken.returned
            taken.returned += 1
            yield message
            if self._turns != turn:
                return
        taken.returned = end

    def _offset_of(self, queue: MessageQueue, offset: Start) -> Callable[[], Coroutine[Any, Any, None]]:
        return partial(self._reader.seek, queue, offset_or_start(offset, "offset"))

    def _sought(self, queue: MessageQueue) -> None:
        if self._taken is not None and self._taken.queue == queue:
            self._turns += 1  # a `for` loop must not yield messages from before the seek

    def _assigning(self, queues: Iterable[MessageQueue | QueueData]) -> Callable[[], Coroutine[Any, Any, None]]:
        self._reader.check_open()
        if self._reader.filters:
            raise InvalidArgument("subscribe and assign exclude each other")
        if self._options.broadcast_dir is not None:
            raise InvalidArgument("broadcasting reads all queues of the topics that are subscribed to")
        self._reader.otherwise = self._make_filter("*", None)
        return partial(self._reader.assign, sorted(set(queue_list("queues", queues))))

    def _pausing(self, queues: Iterable[MessageQueue], *, paused: bool) -> Callable[[], Coroutine[Any, Any, None]]:
        wanted = queue_list("queues", queues)

        async def pause() -> None:
            self._fetcher.pause(wanted, paused=paused)

        return pause

    def _committing(self, offsets: Mapping[MessageQueue, int] | None) -> Callable[[], Coroutine[Any, Any, None]]:
        reader, fetcher = self._reader, self._fetcher
        if not reader.group:
            raise InvalidArgument("a consumer without a group commits nothing: give it a group")
        if isinstance(fetcher.rejection, Fenced):
            raise fetcher.rejection.with_traceback(None)
        self._finish()
        retry_s = self._options.request_timeout_s
        if offsets is None:
            return partial(reader.record_all, retry_s=retry_s)
        return partial(reader.record, queue_offsets(offsets), retry_s=retry_s)

    def _halt(self) -> None:
        """Make the running poll and all later ones raise `Closed`: the first step of `close`."""
        if not self._client.connection.is_void:
            self._fetcher.halt()

    def _leave(self) -> bool:
        """Run the last callbacks; return whether finished messages are then to be committed."""
        reader = self._reader
        if reader.is_closed:
            return False
        reader.is_closed = True
        self._finish()
        self._turns += 1
        self._callbacks.announce(self._fetcher.changes)
        self._revoke(self._fetcher.queues)
        return self._auto_commit


class BlockingPullConsumer(ClosedByWith, BasePullConsumer):
    """The kernel of `minimq.PullConsumer`."""

    _make_turn = staticmethod(threading.RLock)

    # ---- what to read ---------------------------------------------------------------------------

    def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        """Read exactly these queues, from the group's committed offsets on, regardless of other members.

        `consumer.assign(admin.route("orders").queues)` reads all queues of a topic.

        Raises:
            InvalidArgument: topics were subscribed to, or the consumer is for broadcasting.
            TopicNotFound, TopicUnavailable, QueueNotFound, Unavailable: a queue cannot be read. Its route is looked up
                for up to `start_timeout_s`.
        """
        self._client.wait(self._assigning(queues))

    def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Continue at another offset; the next commit of the queue may then go back.

        Args:
            queue: a queue of this consumer.
            offset: an offset; or "earliest", "latest" or a time, for the first message stored at or after it. A number
                is an offset here, so that milliseconds since 1970 are written as text: "1769846400000ms".

        Raises:
            InvalidArgument: the queue does not belong to this consumer, or the offset is invalid.
            TopicNotFound, Unavailable: the broker cannot look up the time.
        """
        self._client.wait(self._offset_of(queue, offset))
        self._sought(queue)

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`. Raises `InvalidArgument`."""
        self._client.wait(self._pausing(queues, paused=True))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again. Raises `InvalidArgument`."""
        self._client.wait(self._pausing(queues, paused=False))

    # ---- reading --------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in order; an empty list if none arrived in time.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: maximum number of messages to return.

        Raises:
            OffsetOutOfRange: with `offset_reset="error"`, a message was deleted before it was read; `seek` elsewhere.
            DamagedMessages: a batch is damaged; `seek` to its `next_offset` to go on.
            GroupConflict: the consumer contradicts its group; raised by each `poll` until the group accepts it.
            Fenced: another consumer of the user has started with this `client_id`; raised by each `poll` and `commit`.
            TopicNotFound: a topic does not exist.
            TopicUnavailable, Unavailable: the route of a topic was not found within `start_timeout_s` of the first
                poll; polls return nothing before that.
            SystemBusy: no broker had room for the consumer within `start_timeout_s`, or the `Cluster` has too many
                streams; raised by each `poll` until that has changed.
            InvalidArgument: nothing was subscribed to or assigned, or a number is wrong.
            Closed: the consumer was closed, perhaps meanwhile, or belongs to the parent of a forked process.
        """
        return self._read(timeout, max_messages)

    def _read(self, timeout: float, max_messages: int, *, iterated: bool = False) -> list[ReceivedMessage]:
        try:
            with self._turn, self._around_poll() as call:
                return self._deliver(self._poll(timeout, max_messages), call, iterated=iterated)
        except BaseException:  # such as Ctrl-C
            self._undeliver()
            raise

    def _poll(self, timeout: float, max_messages: int) -> list[ReceivedMessage]:
        deadline = self._begin_poll(timeout, max_messages)
        if self._must_join() and not self._client.wait(partial(self._reader.join_by, deadline)):
            return []
        is_over = False
        while True:
            if leaving := self._attend():
                self._client.wait(partial(self._reader.release_queues, leaving, commit=self._auto_commit))
            if (messages := self._take(max_messages)) or is_over:
                return messages
            left_s = deadline - time.monotonic()
            is_over = left_s <= 0
            self._client.wait(partial(self._fetcher.wait, max_messages, (), left_s))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages forever. A message counts as done when the next one is requested, here or by a `poll`."""
        while True:
            yield from self._one_by_one(self._read(1.0, ITERATED_MESSAGES, iterated=True))

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Commit the offsets of the group, even unchanged ones, and wait until they are on disk.

        While a broker does not answer, and until leases are renewed at its next master, it retries for up to
        `request_timeout_s`.

        Args:
            offsets: the next offset to read, by queue; by default that after the last message that a poll has returned,
                or that a `for` loop has finished.

        Raises:
            Fenced: a queue was lost, so that its offset is not recorded; its new owner rereads the messages. The
                offsets of the remaining queues are recorded. Without `offsets`, each such loss is reported once.
            InvalidArgument: an offset is invalid; then nothing is recorded.
            MinimqError: a broker rejected or did not answer; the offsets at other brokers are recorded.
        """
        self._client.wait(self._committing(offsets))

    def close(self) -> None:
        """Commit finished messages unless `auto_commit` is off, leave the group, and end. Idempotent.

        A `poll` in another thread raises `Closed`; `close` waits for a callback that it runs. If the last commit fails,
        it logs a warning, and the messages are redelivered; `commit` before it raises.
        """
        self._finalizer.close(self._close)

    def _close(self) -> None:
        self._halt()
        with self._turn:
            try:
                if self._leave():
                    with suppress(Closed):  # the `Cluster` was closed before: the messages are redelivered
                        self._client.wait(self._reader.record_last)
            finally:
                self._reader.shut_down()
