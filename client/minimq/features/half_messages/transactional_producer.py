"""The transactional producer: messages that become visible if something else commits, such as a database."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from types import TracebackType
from typing import ClassVar, Generic, Self, TypeVar, Unpack

from minimq.arguments import check_function, check_iterable, check_plain_function
from minimq.connection.cluster import Cluster
from minimq.connection.finalizers import ClosedByWith, Finalizer
from minimq.features.half_messages.resolutions import TransactionResolution
from minimq.features.half_messages.transactional_core import HalfTransaction, TransactionalCore
from minimq.options import build_options
from minimq.sending.interceptor import SendInterceptor
from minimq.sending.producer_options import ProducerChanges, ProducerOptions
from minimq.sending.selectors import Selector
from minimq_common.model import Message, MessageQueue

#: Returns how the transaction of a half message ended, as far as known.
TransactionCheck = Callable[[Message], TransactionResolution]
Check = TypeVar("Check", bound=Callable[[Message], object])


class BaseTransactionalProducer(Generic[Check]):
    """The part of the transactional producer that `minimq` and `minimq.aio` share."""

    #: Whether the check may be a coroutine function.
    _awaits: ClassVar[bool] = False

    def __init__(
        self,
        nameserver: str | Sequence[str] | Cluster | None = None,
        *,
        group: str,
        check: Check,
        interceptors: Sequence[SendInterceptor] = (),
        **options: Unpack[ProducerChanges],
    ) -> None:
        (check_function if self._awaits else check_plain_function)("check", check)
        chosen = build_options(ProducerOptions, options, type(self))
        self._core = TransactionalCore(nameserver, group, chosen, check, interceptors)
        self._finalizer = Finalizer(self, self._core.release)

    @property
    def group(self) -> str:
        """The producer group."""
        return self._core.group


class TransactionalProducer(ClosedByWith, BaseTransactionalProducer[TransactionCheck]):
    """Sends messages that consumers get if, and only if, something outside of minimq commits, such as a database.

        producer = TransactionalProducer("127.0.0.1:9876", group="shop", check=check)
        with producer.transaction() as tx:
            tx.send(Message("orders", body, keys=("o-17",)))
            db.commit()

    The transaction commits at the end of the block, and rolls back if the block raises. Its messages are stored at
    once, as half messages that consumers do not see. If the process dies before the end of the transaction, or the
    broker is unavailable then, the broker later asks a member of the producer group: any process with a producer of
    that group, such as the same program after a restart. That producer calls `check` with the first message of the
    transaction. `check` returns `COMMIT`, `ROLLBACK` or `UNKNOWN`; after `UNKNOWN` the broker asks again, by default
    for 7 minutes. Then the transaction stays undecided until an operator decides: see `minimq transaction list`.

    Thread-safe; a transaction belongs to the thread that began it. All its messages go to one broker.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", a sequence of addresses, or a shared `Cluster`.
        group: the producer group: programs that answer for each other's transactions, as they use the same database
            and the same `check`.
        check: called on several threads of the producer, and never for a transaction whose block still runs in this
            process. It must find out from the message alone, such as from its key, whether the transaction committed.
        interceptors: called around each send of a half message, in their order.
        options: those of `ProducerOptions`, by name.

    Raises:
        InvalidArgument: an address, the group or an option is invalid, or `check` is not a plain function.
    """

    def transaction(self, topics: Collection[str] = ()) -> CheckedTransaction:
        """Return a transaction for a `with` block.

        Args:
            topics: all topics of the transaction. Needed only if it has several and not every broker carries all of
                them: the transaction goes to one broker, which must carry them all.

        Raises:
            InvalidArgument: a name is invalid.
            Closed: the producer was closed.
        """
        return CheckedTransaction(self._core, self._core.begin(topics))

    def close(self) -> None:
        """Close. A `check` of the producer group decides on open transactions later. Idempotent."""
        self._finalizer.close(self._core.release)


class BaseCheckedTransaction:
    """The part of a transaction of a `TransactionalProducer` that `minimq` and `minimq.aio` share."""

    def __init__(self, core: TransactionalCore, transaction: HalfTransaction) -> None:
        self._core = core
        self._transaction = transaction

    @property
    def number(self) -> int:
        """The number of the transaction, as in `minimq transaction list`."""
        return self._transaction.number

    def rollback(self) -> None:
        """Make the transaction roll back at the end of the block, without an error."""
        self._transaction.fail()


class CheckedTransaction(BaseCheckedTransaction):
    """A transaction of a `TransactionalProducer`; ends with its `with` block."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._core.leave(self._transaction, error)

    def send(self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None) -> None:
        """Send a half message and wait until it is on disk.

        Args:
            message: the message to send; it must not be delayed.
            queue: send to this queue only; it must be at the broker of the transaction.
            selector: chooses the queue.

        Raises:
            InvalidArgument: the message is invalid, or its topic or queue is not at the broker of the transaction.
            SendFailed: an earlier message was not stored: the transaction is rolled back.
            MinimqError: as `Producer.send`; the transaction is rolled back.
        """
        self._core.send(self._transaction, self._core.accept(self._transaction, (message,), queue, selector))

    def send_many(self, messages: Iterable[Message]) -> None:
        """Send half messages in large batches and wait until all are on disk. Raises as `send`."""
        given = check_iterable("messages", messages, "messages")
        self._core.send(self._transaction, self._core.accept(self._transaction, given))
