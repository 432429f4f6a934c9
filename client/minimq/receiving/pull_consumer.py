"""The pull consumer: the caller asks for messages, in its own thread."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

from minimq.options import DEFAULT_NAMESERVER, with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer import Consumer, Start
from minimq.receiving.consumer_options import ConsumerOptions, check_count, check_offset, check_timeout
from minimq.receiving.member_state import Grant
from minimq.receiving.portion import Portion
from minimq.receiving.received import ReceivedMessage
from minimq_common.errors import Fenced, InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

_TICK_S = 0.2


class PullConsumer(Consumer):
    """Reads queues when asked to: either those that its group gives it (`subscribe`), or chosen ones (`assign`).

    What `poll` returned is in hand until the next `poll`, `commit` or `close`: then it counts as done. A queue that
    another member is to have leaves only in `poll`, when nothing is in hand, after what was in hand before has been
    committed; with `auto_commit=False` that is the user's to do, in `on_revoked` at the latest. When the next `poll`
    takes longer than `drain_s`, the queue is lost: what was in hand is handed out again, by its new owner, and to
    commit it raises `Fenced`. Not thread-safe: one thread polls and runs the callbacks. Another one may close.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        group: the consumer group; its offsets are kept by the brokers.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins: "earliest", "latest" or a time. Decided once per group and topic.
        auto_commit: commit what was in hand by itself, every `commit_interval_s` and when a queue leaves.
        client_id: name among all clients; made up unless given.
        options: how to read; single options may be given by name instead.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        group: str,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        auto_commit: bool = True,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Any,  # noqa: ANN401 - the fields of ConsumerOptions
    ) -> None:
        super().__init__(
            nameserver,
            group,
            client_id=client_id,
            strategy=allocation,
            start=start,
            options=with_changes(options or ConsumerOptions(), changes),
        )
        self._auto_commit = auto_commit
        self._commit_at = time.monotonic() + self._options.commit_interval_s
        #: Held while messages are handed out, and while closing: by then it is known what was.
        self._turn = threading.RLock()
        #: What the latest poll brought, if it is taken bit by bit.
        self._portion: Portion | None = None
        self._ticking: threading.Thread | None = None
        self._stop = threading.Event()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self.close()
        except MiniMQError as failure:
            if error is None:
                raise
            log.warning("consumer: last commit failed group=%s error=%s", self.group, failure)  # not the first failure

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: str = "*", where: str | None = None) -> None:
        """Read the queues of a topic that the group gives this member; before the first `poll`.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", or for example "paid || refunded".
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                have both. All members of a group want the same.

        Raises:
            InvalidArgument: the name or an expression is wrong, or queues were assigned.
        """
        if self._ticking is not None:
            raise InvalidArgument("subscribe and assign exclude each other")
        self._subscribe(topic, expression, where)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, from the group's committed offsets on; no other member is regarded.

        Raises:
            InvalidArgument: topics were subscribed to, or the consumer is for broadcasting.
            TopicNotFound, QueueNotFound, Unavailable: a queue cannot be read.
        """
        self.check_process()
        if self._filters:
            raise InvalidArgument("subscribe and assign exclude each other")
        if self._options.model == "broadcasting":
            raise InvalidArgument("broadcasting reads all queues of the topics that are subscribed to")
        wanted = sorted(set(queues))
        offsets = {queue: self._start_offset(queue) for queue in wanted}
        for queue in self._core.queues:
            if queue not in offsets:
                self._core.stop([queue])
        for queue in wanted:
            if queue not in self._core.queues:
                self._core.start(queue, Grant(0, offsets[queue], 0), tell=False)
        if self._ticking is None:
            self._ticking = threading.Thread(target=self._keep_time, name="minimq-consumer-timer", daemon=True)
            self._ticking.start()

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Go on at another offset; the next commit of the queue may then go back. Raises `InvalidArgument`."""
        self.check_process()
        check_offset(queue, offset)
        self._core.seek(queue, offset)
        if self._portion is not None and not self._undone():
            self._portion.over = True  # a loop goes on there, and not with what it has of before

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`. Raises `InvalidArgument`."""
        self.check_process()
        self._core.pause(queues, paused=True)

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again. Raises `InvalidArgument`."""
        self.check_process()
        self._core.pause(queues, paused=False)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue has. Raises `InvalidArgument`."""
        self.check_process()
        positions = self._core.positions()
        if queue not in positions:
            raise InvalidArgument(f"queue {queue} is not assigned to this consumer")
        waiting = self._waiting()
        return waiting[0].queue_offset if waiting and waiting[0].queue == queue else positions[queue]

    # ---- reading --------------------------------------------------------------------------------

    def poll(self, timeout: float = 1.0, max_messages: int = 4096) -> list[ReceivedMessage]:
        """Return messages, all of one queue and in its order; nothing when none came in time.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: most messages to return.

        Raises:
            OffsetOutOfRange: with `offset_reset="error"`, a message was deleted before it was read; `seek` elsewhere.
            CorruptBatch: a batch is damaged; `seek` to the offset that the text names.
            GroupConflict: the consumer contradicts its group; said by each `poll` until the group takes it.
            TopicNotFound, Unavailable: a topic is not found at the first `poll`.
            InvalidArgument: nothing was subscribed to or assigned, or a number is wrong.
            Closed: the consumer was closed, perhaps meanwhile, or is of a process that was forked.
        """
        self._check_poll(timeout, max_messages)
        with self._turn:
            return self._poll(timeout, max_messages)

    def ask(self, timeout: float, max_messages: int = 4096, given_up: Callable[[], bool] = lambda: False) -> Portion:
        """Poll for a caller that takes messages bit by bit, or may be gone when they come; see `poll`.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: most messages.
            given_up: says that nobody waits any more; `wake` has it asked.
        """
        self._check_poll(timeout, max_messages)
        with self._turn:
            portion = Portion(self._poll(timeout, max_messages, given_up))
            self._portion = portion
            return portion

    def wake(self) -> None:
        """Let a poll that waits look whether anybody waits for it."""
        if not self.is_forked:
            self._core.wake()

    def halt(self) -> None:
        """Let polls raise `Closed` from now on, also one that runs: the beginning of `close`."""
        if not self.is_forked:
            self._core.halt()

    def _check_poll(self, timeout: float, max_messages: int) -> None:
        self.check_process()
        check_timeout(timeout)
        check_count("max_messages", max_messages)

    def _poll(
        self, timeout: float, max_messages: int, given_up: Callable[[], bool] = lambda: False
    ) -> list[ReceivedMessage]:
        if self._member is None and not self._closed:
            if self._filters:
                self._join()
            elif self._ticking is None:
                raise InvalidArgument("nothing to read: subscribe to a topic or assign queues first")
        deadline = time.monotonic() + timeout
        self._put_back()
        while True:
            self._between_polls()
            messages = self._core.take(max_messages, max(deadline - time.monotonic(), 0.0))
            if messages and self._filters:
                messages = self._filters[messages[0].topic].apply(messages)
            if messages or time.monotonic() >= deadline or given_up():
                return messages

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages for ever. A message counts as done when the next one is asked for, here or by a `poll`."""
        while True:
            yield from self.ask(timeout=1.0)

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been returned."""
        self.check_process()
        return bool(self._core.queues) and self._core.at_end() and not self._waiting()

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is, and wait until it is on disk.

        While a broker does not answer, and until leases are renewed at its next master, it waits for up to
        `request_timeout_s` more.

        Args:
            offsets: the next offset to read by queue; where `poll` is in all of them, or a loop in the one that it is
                at, unless given.

        Raises:
            Fenced: a queue has left, so that what was returned of it, or its offset here, is not recorded; its owner
                reads it again. What is still this consumer's is recorded. Without `offsets` each such loss is told
                once.
            InvalidArgument: an offset is no number from 0 on; then nothing is recorded.
            MiniMQError: a broker refused or did not answer; what others have is recorded.
        """
        self.check_process()
        for queue, offset in (offsets or {}).items():
            check_offset(queue, offset)
        patience_s = self._options.request_timeout_s
        if offsets is None:
            self._core.commits.record_all(self._undone(), patience_s=patience_s)
        else:
            self._core.commits.record(offsets, patience_s=patience_s)

    def close(self) -> None:
        """Commit what was in hand unless the user commits alone, leave the group, end. Idempotent.

        A `poll` that runs in another thread hands out nothing more and raises `Closed`; a callback that it runs is
        waited for.

        Raises:
            Fenced: a queue has left, so that what was returned of it is not recorded; the consumer is closed all the
                same, as after each of these errors.
            MiniMQError: the last commit failed.
        """
        if self.is_forked:
            return  # the group is for the process that made it
        self._core.halt()
        with self._turn:
            if self._closed:
                return
            self._closed = True
            self._stop.set()
            if self._portion is not None:
                self._portion.over = True
            try:
                self._revoke_all()
                if self._auto_commit:
                    self.commit()
            finally:
                if self._ticking is not None:
                    self._ticking.join()
                self._shut_down()

    # ---- bit by bit -----------------------------------------------------------------------------

    def _put_back(self) -> None:
        """What a loop that was left, or a caller that is gone, has not got comes next."""
        if self._portion is not None:
            self._portion.over = True  # first: what is given from now on comes twice, but nothing gets lost
            waiting = self._waiting()
            self._portion = None
            if waiting:
                self._core.give_back(waiting)

    def _waiting(self) -> Sequence[ReceivedMessage]:
        """Return what was read and given to nobody yet."""
        return self._of_portion(lambda portion: portion.not_given)

    def _undone(self) -> dict[MessageQueue, int]:
        """Return from where on a queue must not be committed."""
        return {
            message.queue: message.queue_offset for message in self._of_portion(lambda portion: portion.not_done)[:1]
        }

    def _of_portion(self, part: Callable[[Portion], Sequence[ReceivedMessage]]) -> Sequence[ReceivedMessage]:
        messages = part(self._portion) if self._portion is not None else ()
        return messages if messages and self._core.goes_on(messages[0].queue) else ()

    # ---- between polls --------------------------------------------------------------------------

    def _between_polls(self) -> None:
        leaving = self._core.leaving()
        now = time.monotonic()
        if leaving:
            positions = self._core.positions()
            offsets = {queue: positions[queue] for queue in leaving if queue in positions}
            self._hand_back(offsets, commit=self._auto_commit)
        elif self._auto_commit and self._options.commit_interval_s and now >= self._commit_at:
            self._commit_at = now + self._options.commit_interval_s
            try:
                self._core.commits.record_all({})
            except MiniMQError as error:
                # The broker may be about to come back, the queue another member's, or shorter at its new master, as the
                # next pull tells then: the next commit will tell.
                if not error.retriable and not isinstance(error, Fenced | InvalidArgument):
                    raise
                log.warning("consumer: not all is committed group=%s reason=%s", self.group, error)

    def _start_offset(self, queue: MessageQueue) -> int:
        bounds = self._starts.bounds(queue)
        committed = self._starts.committed(self.group, queue)
        return self._starts.by_rule(queue, bounds) if committed is None else committed

    def _keep_time(self) -> None:
        while not self._stop.wait(_TICK_S):
            self._core.tick()
