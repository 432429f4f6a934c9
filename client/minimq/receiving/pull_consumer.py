"""The pull consumer: the caller asks for messages, in its own thread."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

from minimq.connection.cluster import Cluster
from minimq.filtering.tag_filter import TagExpression
from minimq.options import with_changes
from minimq.rebalance import AllocationStrategy
from minimq.receiving.consumer_face import ConsumerFace
from minimq.receiving.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.receiving.poll_batch import PollBatch
from minimq.receiving.pull_reader import PullReader
from minimq.receiving.received import ReceivedMessage
from minimq.receiving.waits import BlockingWaits, complete
from minimq.transport.dropped import WhenDropped
from minimq.transport.home_process import HomeProcess
from minimq.transport.start_position import Start
from minimq_common.errors import Fenced, MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)


class PullConsumer(ConsumerFace):
    """Reads queues when asked to: either those that its group gives it (`subscribe`), or chosen ones (`assign`).

    What `poll` returned is in hand until the next `poll`, `commit` or `close`: then it counts as done. A queue that
    another member is to have leaves only in `poll`, when nothing is in hand, after what was in hand before has been
    committed; with `auto_commit=False` that is the user's to do, in `on_revoked` at the latest. When the next `poll`
    takes longer than `drain_s`, the queue is lost: what was in hand is handed out again, by its new owner, and to
    commit it raises `Fenced`. Not thread-safe: one thread polls and runs the callbacks. Another one may close.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the consumer group; its offsets are kept by the brokers. Without one the consumer can only be assigned
            queues, begins where `start` says, and commits nothing: it looks at messages and leaves no trace.
        allocation: how the group divides queues, by name or as an object.
        start: where a new group begins: "earliest", "latest" or a time, such as a datetime with a time zone or "-24h";
            see docs/consuming.md. Decided once per group and topic.
        auto_commit: commit what was in hand by itself, every `commit_interval_s` and when a queue leaves.
        client_id: name among all clients; made up unless given.
        options: how to read; single options may be given by name instead.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    _reader: PullReader

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str | None = None,
        allocation: str | AllocationStrategy = "averagely",
        start: Start = "earliest",
        auto_commit: bool = True,
        client_id: str | None = None,
        options: ConsumerOptions | None = None,
        **changes: Unpack[ConsumerChanges],
    ) -> None:
        self._reader = PullReader(
            nameserver,
            group=group,
            allocation=allocation,
            start=start,
            auto_commit=auto_commit,
            client_id=client_id,
            options=with_changes(options or ConsumerOptions(), changes, PullConsumer),
            waits=BlockingWaits,
        )
        self._process = HomeProcess("consumer")
        #: Held while messages are handed out, and while closing: by then it is known what was.
        self._turn = threading.RLock()
        self._when_dropped = WhenDropped(self, self._reader.release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Close. Log, rather than raise, a commit of queues that were lost, and an error that follows another one."""
        try:
            self.close()
        except MiniMQError as failure:
            if error is None and not isinstance(failure, Fenced):
                raise
            if isinstance(failure, TopicNotFound) and isinstance(error, TopicNotFound):
                return  # the topic was deleted, which the error says
            log.warning("consumer: last commit failed group=%s error=%s", self.group, failure)

    # ---- what to read ---------------------------------------------------------------------------

    def subscribe(self, topic: str, expression: TagExpression = "*", where: str | None = None) -> None:
        """Read the queues of a topic that the group gives this member; before the first `poll`.

        Args:
            topic: its name; call again for further topics.
            expression: which tags: "*", for example "paid || refunded", or ["paid", "refunded"].
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                have both. All members of a group want the same.

        Raises:
            InvalidArgument: the name or an expression is wrong, or queues were assigned.
        """
        self._reader.subscribe(topic, expression, where)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Read exactly these queues, from the group's committed offsets on; no other member is regarded.

        Raises:
            InvalidArgument: topics were subscribed to, or the consumer is for broadcasting.
            TopicNotFound, TopicUnavailable, QueueNotFound, Unavailable: a queue cannot be read. Where its topic is,
                is asked for up to `start_timeout_s`.
        """
        complete(lambda: self._reader.assign(queues))

    def seek(self, queue: MessageQueue, offset: Start) -> None:
        """Go on elsewhere; the next commit of the queue may then go back.

        Args:
            queue: one that is this consumer's.
            offset: an offset; or "earliest", "latest" or a time, for the first message stored at or after it. A number
                is an offset here, so that milliseconds since 1970 are written as text: "1769846400000ms".

        Raises:
            InvalidArgument: the queue is not this consumer's, or the offset is none.
            TopicNotFound, Unavailable: the broker cannot be asked what it stored when.
        """
        complete(lambda: self._reader.seek(queue, offset))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Hand nothing out of these queues until `resume`. Raises `InvalidArgument`."""
        complete(lambda: self._reader.pause(queues, paused=True))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Hand messages of these queues out again. Raises `InvalidArgument`."""
        complete(lambda: self._reader.pause(queues, paused=False))

    def position(self, queue: MessageQueue) -> int:
        """Return the offset that the next message of a queue has. Raises `InvalidArgument`."""
        return self._reader.position(queue)

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
            TopicNotFound: a topic does not exist.
            TopicUnavailable, Unavailable: where a topic is was not found out for `start_timeout_s`, counted from the
                first poll; polls return nothing before that time is over.
            SystemBusy: no broker has room for the consumer, and `start_timeout_s` is over since it asked; said by each
                `poll` until one has.
            InvalidArgument: nothing was subscribed to or assigned, or a number is wrong.
            Closed: the consumer was closed, perhaps meanwhile, or is of a process that was forked.
        """
        try:
            with self._turn:
                messages = complete(lambda: self._reader.poll(timeout, max_messages))
        except MiniMQError:  # which says that nothing was taken
            raise
        except BaseException:
            self._reader.is_interrupted = True
            raise
        return messages  # no signal is handled between the end of the block and the return

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages for ever. A message counts as done when the next one is asked for, here or by a `poll`."""
        while True:
            yield from self._poll_batch()

    def _poll_batch(self) -> PollBatch:
        try:
            with self._turn:
                batch = complete(self._reader.poll_batch)
        except MiniMQError:
            raise
        except BaseException:
            self._reader.is_interrupted = True
            raise
        return batch

    def at_end(self) -> bool:
        """Tell whether everything that was stored when last heard of has been returned."""
        return self._reader.at_end()

    def commit(self, offsets: Mapping[MessageQueue, int] | None = None) -> None:
        """Record how far the group is, and wait until it is on disk, also when nothing has changed since the last time.

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
        complete(lambda: self._reader.commit(offsets))

    def close(self) -> None:
        """Commit what was in hand unless the user commits alone, leave the group, end. Idempotent.

        A `poll` that runs in another thread hands out nothing more and raises `Closed`; a callback that it runs is
        waited for.

        Raises:
            Fenced: a queue has left, so that what was returned of it is not recorded; the consumer is closed all the
                same, as after each of these errors.
            MiniMQError: the last commit failed.
        """
        self._when_dropped.closed()
        if self._process.is_forked:
            return  # the group is for the process that made it
        self._reader.halt()
        with self._turn:
            complete(self._reader.close)
