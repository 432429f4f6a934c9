"""The report of a writing task to the driver."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from minimq.features.transactions.decisions import StagedPart, Transaction


@dataclass(frozen=True, slots=True)
class TaskCommit(WriterCommitMessage):
    #: The transaction of its messages; None if they are visible already.
    transaction: Transaction | None
    topics: frozenset[str]
    #: Staged batches; empty without a transaction.
    parts: tuple[StagedPart, ...]
    #: An earlier attempt has already decided the transaction, according to a broker.
    decided: bool = False
    #: Number of rows that are no valid messages, and were dropped or sent to the dead-letter topic.
    rejected: int = 0
    first_rejection: str = ""
