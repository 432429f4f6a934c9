"""Transactions at one broker, as a test wants them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from minimq_proto.v1 import broker_pb2, staged_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from support.broker_link import BrokerLink
from support.raw_sender import TIMEOUT_S, RawSender


def decision(number: int, parts: Mapping[str, Mapping[int, Iterable[int]]]) -> staged_pb2.Decision:
    """Return a decision: the sequence numbers of each producer at each broker."""
    return staged_pb2.Decision(
        number=number,
        parts=[
            staged_pb2.StagedPart(broker_name=name, producer_id=producer_id, sequences=sequences)
            for name, batches in parts.items()
            for producer_id, sequences in batches.items()
        ],
        broker_names=sorted(parts),
    )


class RawTransactions:
    """The transactions of one name at one broker.

    Args:
        address: HOST:PORT of the broker.
        name: of the transactions.
        topic: to which batches go.
    """

    def __init__(self, address: str, name: str = "x", topic: str = "t") -> None:
        self._link = BrokerLink(address)
        self._sender = RawSender(address)
        self._name = name
        self._topic = topic

    def __enter__(self) -> RawTransactions:
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.__exit__()
        self._link.close()

    def stage(self, number: int, batches: Sequence[tuple[int, bytes]]) -> list[broker_pb2.AppendResult]:
        """Stage batches for queues, and return the answers."""
        return self._sender.send(self._topic, list(batches), broker_pb2.Transaction(name=self._name, number=number))

    def begin_commit(self, wanted: staged_pb2.Decision) -> Callable[[], staged_pb2.CommitTransactionResponse]:
        """Begin to commit, and return a function that waits for the answer."""
        request = staged_pb2.CommitTransactionRequest(name=self._name, decision=wanted)
        begun = self._link.of(StagedStub).CommitTransaction.future(request, timeout=TIMEOUT_S)
        return lambda: self._link.call(lambda _, timeout: begun.result(timeout), request, TIMEOUT_S)

    def commit(self, wanted: staged_pb2.Decision) -> staged_pb2.Decision:
        """Commit, and return what is decided."""
        return self.begin_commit(wanted)().decision

    def describe(self, number: int = 0, **sequences: Iterable[int]) -> staged_pb2.CommitTransactionResponse:
        """Ask how the latest transaction ended; say what is about to be committed, by `of_` and the producer id."""
        batches = [
            staged_pb2.StagedPart(producer_id=int(name.removeprefix("of_")), sequences=numbers)
            for name, numbers in sequences.items()
        ]
        request = staged_pb2.CommitTransactionRequest(name=self._name, number=number, batches=batches)
        return self._link.call(self._link.of(StagedStub).CommitTransaction, request, TIMEOUT_S)

    def is_decided(self) -> bool:
        return self.describe().HasField("decision")
