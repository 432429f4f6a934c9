"""A transaction with half messages as its producer sees it: what it has sent, and to which broker."""

from __future__ import annotations

import random
from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from minimq.administration.resolutions import OUTCOMES, TransactionResolution
from minimq.sending.transactions.decisions import Transaction
from minimq_common.errors import (
    InvalidArgument,
    MiniMQError,
    SendFailed,
    TransactionEnded,
    TransactionExpired,
    Unavailable,
)
from minimq_common.model import MessageQueue, TopicRoute
from minimq_common.wire.protocol_bounds import MAX_SEQUENCES
from minimq_proto.v1 import halves_pb2

_NAMES = {
    halves_pb2.HALF_OUTCOME_COMMITTED: "was committed",
    halves_pb2.HALF_OUTCOME_ROLLED_BACK: "was rolled back",
}


class TransactionState(Enum):
    """The use that a producer may make of a transaction."""

    OPEN = "open"
    #: It is to be rolled back.
    FAILED = "failed"
    ENDED = "ended"


@dataclass(slots=True)
class HalfTransaction:
    """One transaction. Pure but for its number; belongs to the thread or the task that has begun it."""

    group: str
    topics: tuple[str, ...] = ()
    number: int = 0
    #: Of the broker that has all messages; empty before the first one.
    broker_name: str = ""
    topic: str = ""
    batches: int = 0
    #: What may be done with it.
    state: TransactionState = TransactionState.OPEN
    #: Why it is to be rolled back; None without an error.
    failure: MiniMQError | None = None

    def __post_init__(self) -> None:
        self.number = random.getrandbits(63)

    @property
    def id(self) -> Transaction:
        """The transaction as it travels."""
        return Transaction(self.group, self.number, is_half=True)

    def check_open(self) -> None:
        """Raise `InvalidArgument` when nothing can be sent any more."""
        if self.state is TransactionState.ENDED:
            raise InvalidArgument("the transaction has ended: send within the block of `producer.transaction()`")
        if self.state is TransactionState.FAILED:
            raise self.failed()
        if self.batches >= MAX_SEQUENCES:
            raise InvalidArgument(f"the transaction has {self.batches:,} batches: begin another one")

    def failed(self) -> SendFailed:
        """Return the error of whoever goes on with a transaction that is to be rolled back."""
        why = f": {self.failure.message}" if self.failure is not None else ""
        return SendFailed(
            f"the transaction is rolled back, since it was told to be, or one of its messages was not stored{why}"
        )

    def choose(
        self, route: TopicRoute, queue: MessageQueue | None, brokers: Collection[str], turn: int
    ) -> MessageQueue:
        """Return the queue for a message."""
        if queue is not None:
            if self.broker_name not in ("", queue.broker_name):
                raise InvalidArgument(
                    f"queue {queue} is on another broker than {self.broker_name}, which has the transaction: all its "
                    "messages go to one broker"
                )
            return queue
        writable = route.write_queues()
        for name in (self.broker_name,) if self.broker_name else brokers:
            mine = [each for each in writable if each.broker_name == name]
            if mine:
                return mine[turn % len(mine)]
        if self.broker_name and any(data.broker_name != self.broker_name for data in route.queues):
            raise InvalidArgument(
                f"topic {route.topic!r} takes no messages on broker {self.broker_name}, which has the transaction: "
                "name all topics ahead, producer.transaction(topics=[...]), or create the topic on all brokers"
            )
        if self.topics and not brokers:
            raise InvalidArgument(
                f"no broker carries all of {', '.join(self.topics)}: all messages of a transaction go to one broker"
            )
        raise Unavailable(f"no broker takes messages for topic {route.topic!r} now")

    def sent(self, queue: MessageQueue) -> None:
        """Note that a batch is about to be sent: from now on the broker may have something of it."""
        if not self.broker_name:
            self.broker_name, self.topic = queue.broker_name, queue.topic

    def fail(self, error: MiniMQError | None = None) -> None:
        """Have it rolled back."""
        if self.state is TransactionState.OPEN:
            self.state, self.failure = TransactionState.FAILED, error

    def end(self, resolution: TransactionResolution) -> halves_pb2.EndHalfRequest | None:
        """Return the request that ends it; None if its broker has nothing of it."""
        self.state = TransactionState.ENDED
        if not self.broker_name:
            return None
        return halves_pb2.EndHalfRequest(
            producer_group=self.group,
            number=self.number,
            outcome=OUTCOMES[resolution],
            batches=max(self.batches, 1),
        )

    @property
    def must_roll_back(self) -> bool:
        """True if it cannot be committed."""
        return self.state is TransactionState.FAILED

    def check_ended(self, wanted: halves_pb2.HalfOutcome.ValueType, result: halves_pb2.EndHalfResult) -> None:
        """Raise the reason why it has not ended as it was to."""
        outcome, commits = result.outcome, wanted == halves_pb2.HALF_OUTCOME_COMMITTED
        if outcome == wanted or (not commits and outcome != halves_pb2.HALF_OUTCOME_COMMITTED):
            return
        if outcome == halves_pb2.HALF_OUTCOME_EXPIRED:
            raise TransactionExpired(
                f"{self} is not committed: broker {self.broker_name} does not have all of its {self.batches} batches "
                "any more; none of its messages is delivered"
            )
        raise TransactionEnded(
            f"{self} {_NAMES.get(outcome, 'has ended')} before it was {'committed' if commits else 'rolled back'}: by "
            "an answer of a check, which a member of the group gave while the block was open, or by hand; "
            f"{'none of its messages is' if commits else 'its messages are'} delivered"
        )

    def not_committed(self, error: MiniMQError) -> MiniMQError:
        """Return the error of whoever has committed; of one who did not hear what came of it, it says so."""
        if isinstance(error, TransactionEnded | TransactionExpired | InvalidArgument):
            return error
        return error.with_message(
            f"{self}: it is not known whether broker {self.broker_name} has committed it ({error.message}); its "
            "messages are stored, and the check of the producer group decides on them"
        )

    def __str__(self) -> str:
        return f"transaction {self.number} of producer group {self.group!r}"
