"""A producer's transaction: its messages until the end of its block, the commit, and the blocking interface."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, partial
from itertools import repeat
from types import TracebackType
from typing import Generic, Self, TypeVar

from minimq.arguments import check_function, check_message_type, check_queue
from minimq.connection.loop_calls import LoopStep, run_steps
from minimq.sending.interceptor import Interceptors
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.transactions.placement import TransactionMessage
from minimq.sending.transactions.transaction_input import TransactionInput
from minimq.sending.transactions.transactor import StoredBatch, Transactor
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_topic
from minimq_common.properties import check_message_group
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BYTES

M = TypeVar("M")


class MessageValidator:
    """Validates the messages of transactions, and notifies the interceptors."""

    def __init__(self, max_body_bytes: int, interceptors: Interceptors) -> None:
        self._max_body_bytes = max_body_bytes
        self._interceptors = interceptors

    def take(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> TransactionMessage:
        """Validate a message, after the interceptors."""
        check_message_type(message)
        if not self._interceptors:
            return self._checked(message, queue, selector)
        message = self._interceptors.before_send(message)
        try:
            return self._checked(message, queue, selector)
        except BaseException as error:
            self._interceptors.not_sent(message, error)
            raise

    def _checked(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> TransactionMessage:
        size = check_message(message, self._max_body_bytes)
        check_topic(message.topic)
        if message.deliver_after_s is not None or message.deliver_at is not None:
            raise InvalidArgument(
                "a delayed message cannot be part of a transaction: leave out its due time, or send it by itself"
            )
        if message.message_group is not None:
            if queue is not None or selector is not None:
                raise InvalidArgument("a message group has its queue: leave out queue and selector")
            check_message_group(message.message_group)
        if selector is not None:
            if queue is not None:
                raise InvalidArgument("give either queue or selector: the selector chooses the queue")
            check_function("selector", selector)
        if queue is not None:
            check_queue("queue", queue)
            if queue.topic != message.topic:
                raise InvalidArgument(f"a message for topic {message.topic!r} cannot go to queue {queue}")
        return TransactionMessage(message, queue, selector, size, time.time_ns() // 1_000_000)

    def sent(self, items: Sequence[TransactionMessage], receipts: Iterable[SendReceipt | None] = repeat(None)) -> None:
        """Notify the interceptors that messages are stored."""
        for item, receipt in zip(items, receipts, strict=False) if self._interceptors else ():
            self._interceptors.after_send(item.message, receipt, None)

    def not_sent(self, items: Sequence[TransactionMessage], error: BaseException) -> None:
        """Notify the interceptors that messages are not stored, or may not be."""
        reason = error if isinstance(error, MiniMQError) else SendFailed(f"the transaction has failed: {error!r}")
        for item in items if self._interceptors else ():
            self._interceptors.after_send(item.message, None, reason)


class OpenTransaction(Generic[M]):
    """A transaction of a producer. Not thread-safe."""

    def __init__(self, transactor: Transactor, intake: MessageValidator, source: TransactionInput[M] | None) -> None:
        self._transactor = transactor
        self._intake = intake
        self._source = source
        self._messages: list[TransactionMessage] = []
        self._size = 0
        self._has_received = self._has_ended = False
        self._batches: list[StoredBatch] | None = None

    def send(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> None:
        """Add a message."""
        self._check_open()
        item = self._intake.take(message, queue, selector)
        if self._size + item.size > MAX_ATOMIC_BYTES:
            error = MessageTooLarge(
                f"the transaction would have {self._size + item.size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: end "
                "it earlier, and begin another one"
            )
            self._intake.not_sent([item], error)
            raise error
        self._size += item.size
        self._messages.append(item)

    def begin_receiving(self) -> TransactionInput[M]:
        """Return the source of the transaction. Raises `InvalidArgument` if there is none, or at the second call."""
        self._check_open()
        if self._source is None:
            raise InvalidArgument("the transaction has no consumer: begin it with producer.transaction(consumer)")
        if self._has_received:
            raise InvalidArgument("a transaction receives once: its messages are of one broker, and so is all of it")
        self._has_received = True
        return self._source

    @cached_property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts of the messages, in their order. Raises `InvalidArgument` before the commit."""
        if self._batches is None:
            raise InvalidArgument("a transaction has receipts once it is committed: read them behind the block")
        return [*self._receipts(self._batches)]

    def _receipts(self, batches: Sequence[StoredBatch]) -> Iterator[SendReceipt]:
        found = {index: SendReceipt(each.batch, place) for each in batches for place, index in enumerate(each.indices)}
        for index in range(len(self._messages)):
            yield found[index]

    async def leave(self, error: BaseException | None) -> None:
        """Commit at the end of the block; roll back if it raised `error`. Does nothing after `roll_back`."""
        if error is not None or self._has_ended:
            await self.roll_back()
            return
        self._has_ended = True
        try:
            self._batches = await self._transactor.commit(self._messages, self._source)
        except BaseException as failure:
            self._transactor.count(failed=1)
            self._intake.not_sent(self._messages, failure)
            await self._go_back(rolled_back=False)
            raise
        self._transactor.count(committed=1, messages=len(self._messages))
        self._intake.sent(self._messages, self._receipts(self._batches))

    async def roll_back(self) -> None:
        """Discard the messages, and have the consumed ones redelivered. Idempotent."""
        if self._has_ended:
            return
        self._has_ended = True
        self._transactor.count(rolled_back=1)
        self._intake.not_sent(self._messages, SendFailed("the transaction was rolled back: nothing was sent"))
        await self._go_back(rolled_back=True)

    async def _go_back(self, *, rolled_back: bool) -> None:
        source = self._source
        if source is not None and source.queue is not None:
            await LoopStep(source.client, partial(source.go_back, rolled_back=rolled_back))

    def _check_open(self) -> None:
        if self._has_ended:
            raise InvalidArgument("the transaction has ended: begin another one")


class TransactionFace(Generic[M]):
    """The part of a producer's transaction that `minimq` and `minimq.aio` share."""

    def __init__(self, opened: OpenTransaction[M]) -> None:
        self._opened = opened

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
        self._opened.send(message, queue, selector)

    @property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts in the order of the messages, after the commit."""
        return self._opened.receipts


class ProducerTransaction(TransactionFace[M]):
    """Messages that consumers see all together, or none of them; see `Producer.transaction`. Not thread-safe.

    The end of its block commits it. If the block raises, it is rolled back: nothing was sent before the commit.
    """

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        run_steps(lambda: self._opened.leave(error))

    def receive(self, timeout: float = 1.0, max_messages: int = 4096) -> list[M]:
        """Receive messages from the consumer of the transaction; once per transaction. The commit consumes them.

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
        """Discard the messages; those of the consumer are redelivered. The rest of the block may continue."""
        run_steps(self._opened.roll_back)
