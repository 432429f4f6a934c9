"""The input of a transaction from a consumer: messages of one broker, and how far its group is by them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

from minimq.connection.client import ClusterClient
from minimq_common.errors import InvalidArgument, MiniMQError
from minimq_common.model import MessageQueue
from minimq_proto.v1 import broker_pb2

M = TypeVar("M")


class Consumed(Protocol):
    """The messages that an atomic append consumes; used on the event loop of its sender's connection."""

    @property
    def queue(self) -> MessageQueue | None:
        """A queue of the broker that stores the append; None if nothing is consumed."""

    def progress(self) -> broker_pb2.AtomicProgress:
        """Return how far the group is, for one try. Raises `Fenced` if the messages are another consumer's by now."""

    def answered(self, error: MiniMQError | None) -> None:
        """Note the outcome of a try."""

    def may_pass(self) -> bool:
        """Tell whether another try may pass where one was fenced: the lease is renewed at another master."""


class TransactionInput(Consumed, Protocol[M]):
    """The messages that one transaction consumes; `go_back` belongs to the event loop of the consumer's connection."""

    @property
    def client(self) -> ClusterClient:
        """The consumer's use of the cluster."""

    def receive(self, timeout: float, max_messages: int) -> Any:
        """Return messages as the consumer does."""

    def took(self, messages: Sequence[M]) -> list[M]:
        """Note messages that were received; return those that are of the transaction."""

    async def go_back(self, *, rolled_back: bool) -> None:
        """Have the messages delivered again, unless they are consumed: if not `rolled_back`, the broker is asked."""


def checked_input(consumer: TransactionalConsumer[M], *, awaits: bool) -> TransactionInput[M]:
    """Return what a transaction takes from a consumer. Raises `InvalidArgument` if it cannot."""
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
        """Return what one transaction takes from it. Raises `InvalidArgument` if it cannot."""
