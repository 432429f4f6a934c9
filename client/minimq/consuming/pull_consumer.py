"""The pull consumer, whose caller polls messages on its own thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import Finalizer
from minimq.connection.loop_calls import run_steps
from minimq.consuming.consumer import BaseConsumer
from minimq.consuming.consumer_options import ConsumerChanges, ConsumerOptions
from minimq.consuming.interceptor import ReceiveInterceptor
from minimq.consuming.message_filter import TagExpression
from minimq.consuming.pull_reader import ITERATED_MESSAGES, PullReader
from minimq.consuming.received import ReceivedMessage
from minimq.consuming.start_position import Start
from minimq.features.transactions.transaction_inputs import PullInput
from minimq.options import build_options
from minimq.rebalance import AllocationStrategy
from minimq_common.model import MessageQueue, QueueData

if TYPE_CHECKING:
    import pyarrow as pa


class BasePullConsumer(BaseConsumer):
    """The part of a pull consumer that is the same for threads and asyncio."""

    _reader: PullReader
    poll: Callable[..., Any]
    #: Makes the lock that a poll and `close` hold, so that `close` knows all returned messages.
    _make_turn: Callable[[], Any]

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
        self._reader = PullReader(
            nameserver,
            group=group,
            allocation=allocation,
            start=start,
            auto_commit=auto_commit,
            client_id=client_id,
            options=build_options(ConsumerOptions, options, type(self)),
            interceptors=interceptors,
        )
        self._turn = self._make_turn()
        self._finalizer = Finalizer(self, self._reader.release)

    def subscribe(self, topic: str, tags: TagExpression = "*", *, where: str | None = None) -> None:
        """Read the queues of a topic that are assigned to this member; call it before the first `poll`.

        Args:
            topic: its name; call again for further topics.
            tags: which ones: "*", for example "paid || refunded", or ["paid", "refunded"].
            where: which properties, for example "region = 'eu' AND amount > 10"; see docs/filtering.md. A message must
                match both. All members of a group need the same filter.

        Raises:
            InvalidArgument: the name or an expression is wrong, or queues were assigned.
        """
        self._reader.subscribe(topic, tags, where)

    def position(self, queue: MessageQueue) -> int:
        """Return the offset of the next message of a queue. Raises `InvalidArgument`."""
        return self._reader.position(queue)

    @property
    def is_ready(self) -> bool:
        """True once a broker has accepted it into its group, and every position is fixed.

        Until then polls return nothing, or raise the reason. With `start="latest"`, no message that is sent afterwards
        is skipped.
        """
        return self._reader.is_ready

    def at_end(self) -> bool:
        """Return whether polls have returned everything that was stored at the brokers' latest answers."""
        return self._reader.at_end()

    def transaction_input(self) -> PullInput:
        """Return the input of one transaction, for `Producer.transaction`.

        Raises:
            InvalidArgument: it commits automatically, or has no group.
        """
        return self._reader.transaction_input(self.poll)


class PullConsumer(BasePullConsumer):
    """Polls messages of queues: those assigned by its group (`subscribe`), or chosen ones (`assign`).

    Messages that `poll` returned are in flight until the next `poll`, `commit` or `close`: then they count as done. A
    queue is revoked only in `poll`, when none of its messages is in flight, after its finished messages have been
    committed; with `auto_commit=False` you have to commit them, in `on_revoked` at the latest. If the next `poll` comes
    later than `revoke_timeout_s`, the queue is lost: its messages in flight are redelivered by the new owner, and their
    commit raises `Fenced`. Not thread-safe: one thread polls and runs the callbacks. Another thread may call `close`.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` to share.
        group: the consumer group, whose offsets brokers keep. Without a group, the consumer can only `assign` queues,
            begins at `start`, commits nothing, and leaves no trace.
        allocation: how the group divides queues, by name or as an object. Choose another strategy to move fewer queues
            in a rebalance, or to keep them in a machine room.
        start: where a new group begins: "earliest", "latest" or a time, such as a datetime with a time zone or "-24h";
            see docs/consuming.md. Decided once per group and topic.
        auto_commit: commit finished messages automatically, every `commit_interval_s` and when a queue is revoked. Turn
            it off to commit with results of your own, as in a transaction.
        client_id: unique name in the group; generated by default. Set it to take over from a former process at once.
        interceptors: wrap each poll, in their order.
        options: those of `ConsumerOptions`, by name.

    Raises:
        InvalidArgument: a name, an address or an option is wrong.
    """

    _make_turn = staticmethod(threading.RLock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    # ---- what to read ---------------------------------------------------------------------------

    def assign(self, queues: Iterable[MessageQueue | QueueData]) -> None:
        """Read exactly these queues, from the group's committed offsets on, regardless of other members.

        `consumer.assign(admin.route("orders").queues)` reads all queues of a topic.

        Raises:
            InvalidArgument: topics were subscribed to, or the consumer is for broadcasting.
            TopicNotFound, TopicUnavailable, QueueNotFound, Unavailable: a queue cannot be read. Its route is looked up
                for up to `start_timeout_s`.
        """
        run_steps(lambda: self._reader.assign(queues))

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
        run_steps(lambda: self._reader.seek(queue, offset))

    def pause(self, queues: Iterable[MessageQueue]) -> None:
        """Return no messages of these queues until `resume`. Raises `InvalidArgument`."""
        run_steps(lambda: self._reader.pause(queues, paused=True))

    def resume(self, queues: Iterable[MessageQueue]) -> None:
        """Return messages of these queues again. Raises `InvalidArgument`."""
        run_steps(lambda: self._reader.pause(queues, paused=False))

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
        with self._turn:
            found = run_steps(lambda: self._reader.poll(timeout, max_messages))
        if found is None:
            return []
        found.handed.given = found.given  # no signal is handled from here to the return
        return found.messages

    def poll_arrow(
        self, timeout: float = 1.0, max_messages: int = 1 << 16, columns: Iterable[str] | None = None
    ) -> pa.Table:
        """Return messages as an Arrow table, all of one queue and in order; an empty one if none arrived in time.

        Needs `minimq[arrow]`. It is a `poll`: its messages are in flight, and are committed in the same way. Bodies are
        not copied.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: maximum number of messages to return.
            columns: some of `minimq.arrow.MESSAGE_SCHEMA`; all when None.

        Raises:
            InvalidArgument: there is no such column.
            CorruptBatch: a column of a batch contradicts itself; `seek` behind it to go on.
            MinimqError: what `poll` raises.
        """
        from minimq.features.tables.columns import ArrowColumns, chosen_columns  # needs pyarrow

        made = ArrowColumns(chosen_columns(columns))
        self._reader.keeps_batches = True
        return made.table(self.poll(timeout, max_messages))

    def __iter__(self) -> Iterator[ReceivedMessage]:
        """Yield messages forever. A message counts as done when the next one is requested, here or by a `poll`."""
        while True:
            with self._turn:
                found = run_steps(lambda: self._reader.poll(1.0, ITERATED_MESSAGES))
            if found is not None:
                yield from found.one_by_one(self._reader)

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
        run_steps(lambda: self._reader.commit(offsets))

    def close(self) -> None:
        """Commit finished messages unless `auto_commit` is off, leave the group, and end. Idempotent.

        A `poll` in another thread raises `Closed`; `close` waits for a callback that it runs. If the last commit fails,
        it logs a warning, and the messages are redelivered; `commit` before it raises.
        """
        self._finalizer.close(self._close)

    def _close(self) -> None:
        self._reader.halt()
        with self._turn:
            try:
                run_steps(self._reader.close)
            finally:
                self._reader.drop()
