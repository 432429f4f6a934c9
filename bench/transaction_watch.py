"""The progress of a query, from its checkpoint and from the brokers of its transactions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import grpc

from minimq.local.server_process import BrokerProcess
from minimq_common.wire.rpc import open_channel
from minimq_proto.v1 import staged_pb2
from minimq_proto.v1.staged_pb2_grpc import StagedStub
from pyspark_minimq.write_options import name_of_query

_ANSWER_S = 1.0
NONE = -1


class Checkpoint:
    """The checkpoint folder of a query.

    Args:
        folder: the folder, which need not exist yet.
        target: the topic that the query writes.
    """

    def __init__(self, folder: Path, target: str) -> None:
        self.folder = folder
        self._target = target
        self._transaction = ""

    @property
    def transaction(self) -> str:
        """The constant name of the query's transactions; "" while the query has no id."""
        if not self._transaction:
            with suppress(FileNotFoundError, json.JSONDecodeError):
                query = json.loads((self.folder / "metadata").read_text())["id"]
                self._transaction = name_of_query(query, self._target)
        return self._transaction

    @property
    def planned(self) -> int:
        """The latest micro-batch with offsets in the checkpoint; -1 if there is none."""
        return _highest(self.folder / "offsets")

    @property
    def done(self) -> int:
        """The latest micro-batch that Spark has recorded as written; -1 if there is none."""
        return _highest(self.folder / "commits")


def _highest(folder: Path) -> int:
    return max((int(path.name) for path in folder.glob("[0-9]*") if path.name.isdecimal()), default=NONE)


@dataclass(frozen=True, slots=True)
class Progress:
    """The latest decision and the staged batches of a query's transactions on one broker."""

    decided: int
    staged: int


class TransactionWatch:
    """Asks brokers for the progress of transactions. A context manager."""

    def __init__(self, brokers: Sequence[BrokerProcess]) -> None:
        self._channels = [open_channel(broker.address) for broker in brokers]

    def __enter__(self) -> TransactionWatch:
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()

    def at(self, index: int, name: str) -> Progress | None:
        """Return the progress on a broker; None if it does not answer."""
        stub = StagedStub(self._channels[index])
        try:
            answer = stub.CommitTransaction(staged_pb2.CommitTransactionRequest(name=name), timeout=_ANSWER_S)
        except grpc.RpcError:
            return None
        return Progress(answer.decision.number if answer.HasField("decision") else NONE, answer.staged_batches)

    def everywhere(self, name: str) -> list[Progress | None]:
        return [self.at(index, name) for index in range(len(self._channels))]
