"""The report of a writing task to the driver, which has to know no more of the task."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql.datasource import WriterCommitMessage

from minimq.connectors import StagedPart, Transaction


@dataclass(frozen=True, slots=True)
class TaskCommit(WriterCommitMessage):
    """The report of a task that has written.

    Attributes:
        transaction: under which it is staged; None when it is there for all to see.
        topics: where rows went.
        parts: what is staged; empty without a transaction.
        decided: whether a broker said that the transaction is decided, by an attempt before this one.
        refused: number of rows that make no message, and were dropped or sent to the dead-letter topic.
        first_refusal: why the first of them makes none.
    """

    transaction: Transaction | None
    topics: frozenset[str]
    parts: tuple[StagedPart, ...]
    decided: bool = False
    refused: int = 0
    first_refusal: str = ""
