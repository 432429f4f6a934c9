"""A transaction of a producer, as a `with` block."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Generic, Self, TypeVar

from minimq.connection.loop_calls import run_steps
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.transactions.open_transaction import OpenTransaction
from minimq_common.model import Message, MessageQueue

M = TypeVar("M")


class TransactionFace(Generic[M]):
    """The part of a producer's transaction that is the same for threads and for asyncio."""

    def __init__(self, opened: OpenTransaction[M]) -> None:
        self._opened = opened

    def send(self, message: Message, *, queue: MessageQueue | None = None, selector: Selector | None = None) -> None:
        """Add a message, which is sent at the end of the block.

        Args:
            message: what to send; delayed messages cannot be part of a transaction.
            queue: where it must go, and the whole transaction to its broker.
            selector: chooses the queue among all of the topic, and with it the broker of the whole transaction. The
                commit is refused if messages belong to different brokers.

        Raises:
            InvalidArgument: the message breaks a rule.
            MessageTooLarge: the transaction would be larger than 8 MiB.
        """
        self._opened.send(message, queue, selector)

    @property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts, in the order of the messages, once it is committed."""
        return self._opened.receipts


class ProducerTransaction(TransactionFace[M]):
    """Messages that consumers see all together, or none of them; made by `Producer.transaction`. Not thread-safe.

    It is committed at the end of its block, and rolled back when the block raises: nothing was sent then.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        run_steps(lambda: self._opened.leave(error))

    def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction, once; they are consumed when it is committed.

        Args:
            timeout: seconds to wait for the first message.
            max_messages: maximum number of messages to return.

        Returns:
            Messages of one broker, of one queue with a `PullConsumer`; an empty list if none arrived in time.

        Raises:
            MiniMQError: as `PullConsumer.poll` or `SimpleConsumer.receive`.
        """
        source = self._opened.begin_receiving()
        return source.took(source.receive(timeout, max_messages))

    def rollback(self) -> None:
        """Send nothing; the messages of the consumer are delivered again. The rest of the block may go on."""
        run_steps(self._opened.roll_back)
