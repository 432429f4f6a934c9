"""The report of a writing task to the driver, which has to know no more of the task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from minimq.connectors import StagedPart, Transaction


@dataclass(frozen=True, slots=True)
class TaskCommit(WriterCommitMessage):
    """The report of a task that has written."""

    #: Under which it is staged; None when it is there for all to see.
    transaction: Transaction | None
    topics: frozenset[str]
    #: What is staged; empty without a transaction.
    parts: tuple[StagedPart, ...]
    #: Whether a broker said that the transaction is decided, by an attempt before this one.
    decided: bool = False
    #: Number of rows that make no message, and were dropped or sent to the dead-letter topic.
    refused: int = 0
    first_refusal: str = ""
