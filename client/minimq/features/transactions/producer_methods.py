"""The method of producers for transactions."""

from __future__ import annotations

from typing import Any, overload

from minimq.features.transactions.open_transaction import (
    AsyncProducerTransaction,
    M,
    ProducerTransaction,
    TransactionalConsumer,
)
from minimq.sending.producer import BaseProducer


class TransactionMethods(BaseProducer):
    """The method of `minimq.Producer`."""

    @overload
    def transaction(self, consumer: None = None) -> ProducerTransaction[Any]: ...

    @overload
    def transaction(self, consumer: TransactionalConsumer[M]) -> ProducerTransaction[M]: ...

    def transaction(self, consumer: TransactionalConsumer[Any] | None = None) -> ProducerTransaction[Any]:
        """Return a transaction for a `with` block: its messages are stored all together at one broker, or not at all.

        The end of the block commits it, within `send_timeout_s`; a block that raises sends nothing. See
        docs/transactions.md.

        Args:
            consumer: the source of messages for `receive`: they count as consumed once the transaction is committed;
                otherwise they are redelivered. A `PullConsumer` needs `auto_commit=False`.

        Raises:
            InvalidArgument: the consumer cannot be part of a transaction.
            TopicNotFound: at the end of the block: no single broker, or not the broker of the consumed messages,
                carries all topics of the transaction.
            Fenced: at the end of the block: the consumed messages now belong to other consumers. Nothing is stored; the
                loop can continue.
            SendFailed: at the end of the block: the commit was not acknowledged in time. The text says if it may be
                stored.
            Closed: the producer was closed.
        """
        return ProducerTransaction(self._core.transactor, consumer)


class AsyncTransactionMethods(BaseProducer):
    """The method of `minimq.aio.Producer`."""

    @overload
    def transaction(self, consumer: None = None) -> AsyncProducerTransaction[Any]: ...

    @overload
    def transaction(self, consumer: TransactionalConsumer[M]) -> AsyncProducerTransaction[M]: ...

    def transaction(self, consumer: TransactionalConsumer[Any] | None = None) -> AsyncProducerTransaction[Any]:
        """Return a transaction for an `async with` block; see `minimq.Producer.transaction`."""
        return AsyncProducerTransaction(self._core.transactor, consumer)
