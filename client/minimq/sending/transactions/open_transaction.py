"""The part that both faces of a producer's transaction share: its messages until it ends, and its end."""

from __future__ import annotations

import time
from collections.abc import Sequence
from enum import Enum, auto
from functools import partial
from typing import Generic, TypeVar

from minimq.arguments import check_function, check_message_type, check_queue
from minimq.connection.loop_steps import LoopStep, Steps
from minimq.sending.interceptor import Interceptors
from minimq.sending.receipt import SendReceipt
from minimq.sending.selectors import Selector
from minimq.sending.transactions.placement import TransactionMessage
from minimq.sending.transactions.transaction_input import TransactionInput
from minimq.sending.transactions.transactor import Transactor
from minimq_common.batch.single import check_message
from minimq_common.errors import InvalidArgument, MessageTooLarge, MiniMQError, SendFailed
from minimq_common.model import Message, MessageQueue
from minimq_common.names import check_topic
from minimq_common.properties import check_message_group
from minimq_common.wire.protocol_bounds import MAX_ATOMIC_BYTES

M = TypeVar("M")

#: To encode that much takes long.
_LARGE_BYTES = 1 << 17


class _End(Enum):
    OPEN = auto()
    ROLLED_BACK = auto()
    COMMITTED = auto()
    FAILED = auto()


class OpenTransaction(Generic[M]):
    """A transaction of a producer. Not thread-safe."""

    def __init__(
        self,
        transactor: Transactor,
        max_body_bytes: int,
        interceptors: Interceptors,
        source: TransactionInput[M] | None,
    ) -> None:
        self._transactor = transactor
        self._max_body_bytes = max_body_bytes
        self._interceptors = interceptors
        self.source = source
        self._messages: list[TransactionMessage] = []
        self._size = 0
        self._topics: set[str] = set()
        self._has_received = False
        self._end = _End.OPEN
        self._receipts: list[SendReceipt] = []

    def send(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> None:
        """Add a message."""
        self._check_open()
        if queue is not None and selector is not None:
            raise InvalidArgument("give either queue or selector: the selector chooses the queue")
        if selector is not None:
            check_function("selector", selector)
        check_message_type(message)
        if not self._interceptors:
            self._add(message, queue, selector)
            return
        message = self._interceptors.before_send(message)
        try:
            self._add(message, queue, selector)
        except BaseException as error:
            self._interceptors.not_sent(message, error)
            raise

    def _add(self, message: Message, queue: MessageQueue | None, selector: Selector | None) -> None:
        size = check_message(message, self._max_body_bytes)
        topic: object = message.topic
        if type(topic) is not str or topic not in self._topics:
            check_topic(message.topic)
        if message.deliver_after_s is not None or message.deliver_at is not None:
            raise InvalidArgument("a delayed message cannot be part of a transaction: send it by itself")
        if message.message_group is not None:
            if queue is not None or selector is not None:
                raise InvalidArgument("a message group has its queue: leave out queue and selector")
            check_message_group(message.message_group)
        if queue is not None:
            check_queue("queue", queue)
            if queue.topic != message.topic:
                raise InvalidArgument(f"a message for topic {message.topic!r} cannot go to queue {queue}")
        if self._size + size > MAX_ATOMIC_BYTES:
            raise MessageTooLarge(
                f"the transaction would have {self._size + size:,} bytes, the limit is {MAX_ATOMIC_BYTES:,}: end it "
                "earlier, and begin another one"
            )
        self._size += size
        self._topics.add(message.topic)
        self._messages.append(TransactionMessage(message, queue, selector, size, time.time_ns() // 1_000_000))

    def begin_receiving(self) -> TransactionInput[M]:
        """Return what the transaction consumes, from which it receives once."""
        self._check_open()
        if self.source is None:
            raise InvalidArgument("the transaction has no consumer: begin it with producer.transaction(consumer)")
        if self._has_received:
            raise InvalidArgument("a transaction receives once: its messages are of one broker, and so is all of it")
        self._has_received = True
        return self.source

    @property
    def is_quick(self) -> bool:
        """True if its end takes little time of the caller: its routes are known, and it is small."""
        return self._size < _LARGE_BYTES and all(self._transactor.knows(topic) for topic in self._topics)

    @property
    def receipts(self) -> Sequence[SendReceipt]:
        """The receipts of the messages, in their order. Raises `InvalidArgument` before the commit."""
        if self._end is not _End.COMMITTED:
            raise InvalidArgument("a transaction has receipts once it is committed: read them behind the block")
        return self._receipts

    def leave(self, error: BaseException | None) -> Steps[None]:
        """End it as its block ends, unless it has ended."""
        if self._end is _End.OPEN:
            yield from self._commit() if error is None else self.roll_back()

    def _commit(self) -> Steps[None]:
        try:
            self._receipts = yield from self._transactor.commit(self._messages, self.source)
            self._end = _End.COMMITTED
            self._transactor.counters.add(committed=1, messages=len(self._messages))
        except BaseException as error:
            self._end = _End.FAILED
            self._transactor.counters.add(failed=1)
            self._tell(error)
            yield from self._go_back(rolled_back=False)
            raise
        for item, receipt in zip(self._messages, self._receipts, strict=True) if self._interceptors else ():
            self._interceptors.after_send(item.message, receipt, None)

    def roll_back(self) -> Steps[None]:
        """Send nothing, and have what was consumed delivered again."""
        if self._end is not _End.OPEN:
            return
        self._end = _End.ROLLED_BACK
        self._transactor.counters.add(rolled_back=1)
        self._tell(SendFailed("the transaction was rolled back: nothing was sent"))
        yield from self._go_back(rolled_back=True)

    def _go_back(self, *, rolled_back: bool) -> Steps[None]:
        source = self.source
        if source is not None and source.queue is not None:
            yield LoopStep(source.client, partial(source.go_back, rolled_back=rolled_back))

    def _tell(self, error: BaseException) -> None:
        if self._interceptors:
            reason = error if isinstance(error, MiniMQError) else SendFailed(f"the transaction has failed: {error!r}")
            for item in self._messages:
                self._interceptors.after_send(item.message, None, reason)

    def _check_open(self) -> None:
        if self._end is not _End.OPEN:
            raise InvalidArgument("the transaction has ended: begin another one")
