"""The input of a transaction from a consumer: messages of one broker, and the progress of its group."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from minimq.connection.client import ClusterClient
from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

M = TypeVar("M")


class Consumed(Protocol):
    """The messages that an atomic append consumes. Used on the event loop of the sender's connection."""

    @property
    def queue(self) -> MessageQueue | None:
        """A queue of the broker of the messages, which must store the append; None if nothing was received."""

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return the progress to commit, for one try. Raises `Fenced` if other consumers have got the messages."""

    def answered(self, error: MiniMQError | None) -> None:
        """Record the outcome of a try."""

    def may_pass(self) -> bool:
        """Return whether a retry may succeed after `Fenced`: a new master may renew the lease."""


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


def checked_input(consumer: TransactionalConsumer[M], *, awaits: bool) -> TransactionInput[M]:
    """Return the source of a transaction. Raises `InvalidArgument` if the consumer cannot be one."""
    make = getattr(consumer, "transaction_input", None)
    if make is None:
        raise InvalidArgument(
            f"a transaction consumes from a PullConsumer or a SimpleConsumer, not from {type(consumer).__name__}"
        )
    if awaits != hasattr(type(consumer), "__aenter__"):
        given, wanted = ("minimq", "minimq.aio") if awaits else ("minimq.aio", "minimq")
        name = type(consumer).__name__
        raise InvalidArgument(f"the consumer is a {given}.{name}: this producer takes a {wanted}.{name}")
    found: TransactionInput[M] = make()
    return found


class TransactionalConsumer(Protocol[M]):
    """A consumer whose messages a transaction can consume: a `PullConsumer` or a `SimpleConsumer`."""

    def transaction_input(self) -> TransactionInput[M]:
        """Return the source of one transaction. Raises `InvalidArgument` if the consumer cannot be one."""
