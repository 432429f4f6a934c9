"""A producer's transaction: its messages until the end of its block, and the consumer that it may have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar

from minimq.connection.client import ClusterClient
from minimq.sending.atomic_append import Consumed
from minimq.sending.pending_batch import PendingMessage
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.transaction_manager import StoredBatches, TransactionManager, receipts_of
from minimq_common.errors import InvalidArgument, MessageTooLarge, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BYTES

M = TypeVar("M")


class TransactionInput(Consumed, Protocol[M]):
    """The messages that one transaction consumes. `go_back` runs on the event loop of the consumer's connection."""

    @property
    def client(self) -> ClusterClient:
        """The client of the consumer."""

    def receive(self, timeout: float, max_messages: int) -> Any:
        """Return messages, or a coroutine for asyncio, as the consumer's own method."""

    def took(self, messages: Sequence[M]) -> list[M]:
        """Record received messages; return those that become part of the transaction."""

    async def go_back(self, *, rolled_back: bool) -> None:
        """Have the messages redelivered. If not `rolled_back`, ask the broker first: they may be consumed."""


class TransactionalConsumer(Protocol[M]):
    """A consumer whose messages a transaction can consume: a `PullConsumer` or a `WorkQueueConsumer`."""

    def transaction_input(self) -> TransactionInput[M]:
        """Return the source of one transaction. Raises `InvalidArgument` if the consumer cannot be one."""


class BaseTransaction(Generic[M]):
    """The part of a producer's transaction that `minimq` and `minimq.aio` share. Not thread-safe."""

    #: Whether its consumer is one of `minimq.aio`.
    _awaits: ClassVar[bool] = False

    def __init__(self, transactor: TransactionManager, consumer: TransactionalConsumer[M] | None) -> None:
        transactor.client.check_open()
        self._transactor = transactor
        self._source = None if consumer is None else self._checked_input(consumer)
        self._messages: list[PendingMessage] = []
        self._size = 0
        self._has_received = self._has_ended = False
        self._batches: StoredBatches | None = None

    def _checked_input(self, consumer: TransactionalConsumer[M]) -> TransactionInput[M]:
        make = getattr(consumer, "transaction_input", None)
        name = type(consumer).__name__
        if make is None:
            raise InvalidArgument(f"a transaction consumes from a PullConsumer or a WorkQueueConsumer, not from {name}")
        if self._awaits != hasattr(type(consumer), "__aenter__"):
            given, wanted = ("minimq", "minimq.aio") if self._awaits else ("minimq.aio", "minimq")
            raise InvalidArgument(f"the consumer is a {given}.{name}: this producer takes a {wanted}.{name}")
        found: TransactionInput[M] = make()
        return found

    def send(self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None) -> None:
        """Add a message, which is sent at the end of the block.

        Args:
            message: the message to send; it must not be delayed.
            queue: send to this queue, and the whole transaction to its broker.
            selector: chooses a queue of the topic, and so the broker of the whole transaction. The commit fails if
                messages belong to different brokers.

        Raises:
            InvalidArgument: the message is invalid.
            MessageTooLarge: the transaction would be larger than 8 MiB.
        """
        self._check_open()
        item = self._transactor.accept(message, queue, selector)
        if self._size + item.size > MAX_ATOMIC_BYTES:
            error = MessageTooLarge(
                f"the transaction would have {self._size + item.size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: end "
                "it earlier and begin another one, or send large bodies without a transaction"
            )
            self._not_sent([item], error)
            raise error
        self._size += item.size
        self._messages.append(item)

    @cached_property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts in the order of the messages, after the commit."""
        if self._batches is None:
            raise InvalidArgument("a transaction has receipts once it is committed: read them behind the block")
        found = receipts_of(self._batches)
        return [found[index] for index in range(len(found))]

    def _begin_receiving(self) -> TransactionInput[M]:
        self._check_open()
        if self._source is None:
            raise InvalidArgument("the transaction has no consumer: begin it with producer.transaction(consumer)")
        if self._has_received:
            raise InvalidArgument("a transaction receives once: its messages are of one broker, and so is all of it")
        self._has_received = True
        return self._source

    def _commits(self, error: BaseException | None) -> bool:
        """Return whether the end of the block commits; if it raised `error`, or rolled back before, it rolls back."""
        if error is not None or self._has_ended:
            return False
        self._has_ended = True
        return True

    def _committed(self, batches: StoredBatches) -> None:
        self._batches = batches
        self._transactor.count(committed=1, messages=len(self._messages))
        self._transactor.notify(self._messages, batches)

    def _failed(self, error: BaseException) -> None:
        self._transactor.count(failed=1)
        self._not_sent(self._messages, error)

    def _rolls_back(self) -> bool:
        """Discard the messages; False if the transaction has ended."""
        if self._has_ended:
            return False
        self._has_ended = True
        self._transactor.count(rolled_back=1)
        failure = SendFailed("the transaction was rolled back: nothing was sent", not_stored=len(self._messages))
        self._not_sent(self._messages, failure)
        return True

    @property
    def _consumed(self) -> TransactionInput[M] | None:
        return self._source if self._source is not None and self._source.queue is not None else None

    def _not_sent(self, items: Sequence[PendingMessage], error: BaseException) -> None:
        self._transactor.interceptors.not_sent((item.message for item in items), error)

    def _check_open(self) -> None:
        if self._has_ended:
            raise InvalidArgument("the transaction has ended: begin another one")


class ProducerTransaction(BaseTransaction[M]):
    """Messages that consumers see all together, or none of them; see `Producer.transaction`. Not thread-safe.

    The end of its block commits it. If the block raises, it is rolled back: nothing was sent before the commit.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if not self._commits(error):
            self.rollback()
            return
        try:
            batches = self._transactor.commit(self._messages, self._source)
        except BaseException as failure:
            self._failed(failure)
            self._go_back(rolled_back=False)
            raise
        self._committed(batches)

    def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction; once per transaction. The commit consumes them.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: maximum number of messages to return.

        Returns:
            Messages of one broker, of one queue with a `PullConsumer`; an empty list if none arrived in time.

        Raises:
            MinimqError: as `PullConsumer.poll` or `WorkQueueConsumer.receive`.
        """
        source = self._begin_receiving()
        return source.took(source.receive(timeout, max_messages))

    def rollback(self) -> None:
        """Discard the messages; those of the consumer are redelivered. The rest of the block may continue."""
        if self._rolls_back():
            self._go_back(rolled_back=True)

    def _go_back(self, *, rolled_back: bool) -> None:
        if (source := self._consumed) is not None:
            source.client.wait(partial(source.go_back, rolled_back=rolled_back))


class AsyncProducerTransaction(BaseTransaction[M]):
    """Messages that consumers see all together, or none of them; see `minimq.Producer.transaction`.

    Cancelling the task during the commit does not stop the commit, but its outcome is lost. While the end of the block
    still finds topics, or encodes a large transaction, cancelling it sends nothing.
    """

    _awaits = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        if not self._commits(error):
            await self.rollback()
            return
        try:
            batches = await self._transactor.commit_async(self._messages, self._source)
        except BaseException as failure:
            self._failed(failure)
            await self._go_back(rolled_back=False)
            raise
        self._committed(batches)

    async def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction; once per transaction."""
        source = self._begin_receiving()
        return source.took(await source.receive(timeout, max_messages))

    async def rollback(self) -> None:
        """Discard the messages; those of the consumer are redelivered. The rest of the block may continue."""
        if self._rolls_back():
            await self._go_back(rolled_back=True)

    async def _go_back(self, *, rolled_back: bool) -> None:
        if (source := self._consumed) is not None:
            await source.client.result(partial(source.go_back, rolled_back=rolled_back))
