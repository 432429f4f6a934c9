"""The transactional producer: messages that become visible if something else commits, such as a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import Self, Unpack

from minimq.administration.resolutions import TransactionResolution
from minimq.arguments import check_iterable, check_plain_function
from minimq.connection.cluster import Cluster
from minimq.connection.loop_calls import run_steps
from minimq.options import with_changes
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.selectors import Selector
from minimq.sending.transactions.transactional_core import CheckThreads, HalfTransaction, TransactionalCore
from minimq.transport.dropped import WhenDropped
from minimq.transport.home_process import check_no_signal
from minimq_common.model import Message, MessageQueue

#: How long the end of a producer waits for checks that run, in seconds.
_JOIN_S = 2.0

#: Says how the transaction of a message ended, as far as that is known.
TransactionCheck = Callable[[Message], TransactionResolution]


class TransactionalProducer:
    """Sends messages that consumers get if, and only if, something outside of minimq commits, such as a database.

        producer = TransactionalProducer("127.0.0.1:9876", group="shop", check=check)
        with producer.transaction() as tx:
            tx.send(Message("orders", body, keys=("o-17",)))
            db.commit()

    The transaction commits at the end of the block, and rolls back if the block raises. What is sent in it is stored at
    once, as half messages that nobody sees. If the process ends before the transaction does, or its broker is away
    then, the broker asks a member of the producer group, any process with a producer of that group, such as the same
    program after its restart. It calls `check` with the first message of the transaction, which answers `COMMIT`,
    `ROLLBACK`, or `UNKNOWN`: then it is asked again later, for 7 minutes unless brokers are told otherwise. After that
    the transaction stays undecided until somebody decides by hand: `minimq transaction list`.

    Thread-safe; a transaction belongs to the thread that has begun it. All its messages go to one broker.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a `Cluster` that others use as well.
        group: the producer group: the programs that answer for each other's transactions, since they use the same
            database and have the same `check`.
        check: called on a thread of the producer, several at a time, never about a transaction whose block still runs
            in this process. Whether it was committed has to follow from the message alone, such as from its key.
        options: how to send; single options may be given by name instead.
        interceptors: called around each send of a half message, in their order.

    Raises:
        InvalidArgument: an address, the group or an option is wrong, or `check` is no plain function.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        check: TransactionCheck,
        options: ProducerOptions | None = None,
        interceptors: Sequence[SendInterceptor] = (),
        **changes: Unpack[ProducerChanges],
    ) -> None:
        check_plain_function("check", check)
        changed = with_changes(options or ProducerOptions(), changes, TransactionalProducer)
        threads = CheckThreads(check)
        self._core = core = TransactionalCore(nameserver, group, changed, threads.ask, interceptors)

        def release() -> None:
            core.release()
            threads.close(_JOIN_S)

        self._release = release
        self._when_dropped = WhenDropped(self, release)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group

    def transaction(self, topics: Collection[str] = ()) -> CheckedTransaction:
        """Return a new transaction, for a `with` block.

        Args:
            topics: to which it sends, if these are several that not every broker carries: all messages of a
                transaction go to one broker, which has to carry all of them.

        Raises:
            InvalidArgument: a name is wrong.
            Closed: the producer was closed.
        """
        return CheckedTransaction(self._core, self._core.begin(topics))

    def close(self) -> None:
        """End. The check decides on transactions that have not ended. Idempotent."""
        check_no_signal()
        if not self._core.is_forked:
            self._when_dropped.closed()
            self._release()


class CheckedFace:
    """The part of a transaction of a `TransactionalProducer` that is the same for threads and for asyncio."""

    def __init__(self, core: TransactionalCore, transaction: HalfTransaction) -> None:
        self._core = core
        self._transaction = transaction

    @property
    def number(self) -> int:
        """Its number, by which tools name it."""
        return self._transaction.number

    def rollback(self) -> None:
        """Have the transaction rolled back at the end of the block, without an error."""
        self._transaction.fail()


class CheckedTransaction(CheckedFace):
    """A transaction of a `TransactionalProducer`; ends with its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        run_steps(lambda: self._core.leave(self._transaction, error))

    def send(self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None) -> None:
        """Send a half message, and wait until it is on disk: what is done next may rely on it.

        Args:
            message: what to send; without a due time.
            queue: where it must go, on the broker of the transaction.
            selector: chooses that queue.

        Raises:
            InvalidArgument: the message breaks a rule, or its topic or queue is on another broker than the transaction.
            SendFailed: an earlier message was not stored: the transaction is rolled back.
            MiniMQError: as of `Producer.send`; the transaction is rolled back.
        """
        run_steps(lambda: self._core.send(self._transaction, (message,), queue, selector))

    def send_many(self, messages: Iterable[Message]) -> None:
        """Send half messages in large batches, and wait until all are on disk. Raises as `send`."""
        given = check_iterable("messages", messages, "messages")
        run_steps(lambda: self._core.send(self._transaction, given, None, None))
