"""Writing data frames and streams."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from minimq import MiniMQError, errors
from minimq.connectors import RecordsSender, StagedPart, Transaction
from pyspark_minimq.connections import transaction_committer
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.tracebacks import in_one_line, without_traceback
from pyspark_minimq.worker_process import SentToWorkers, spare_collector
from pyspark_minimq.write_options import WriteOptions, name_of_one_write, name_of_query

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: As a task knows them: the id of the query, the same after every restart from its checkpoint, and of the micro-batch.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


#: Seconds for which a failed write waits for brokers, to drop staged batches or to learn the outcome.
_ABORT_S: Final = 5.0
#: Seconds for which the plan of a write looks for its topic.
_LOOK_S: Final = 1.0


def check_topic(options: WriteOptions) -> None:
    """See to it that the topic of a write is there: in a task, Spark would repeat the error over pages."""
    topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic is not None]
    if not topics:
        return
    given = replace(options.producer, send_timeout_s=_LOOK_S, credentials=options.connection.credentials)
    with RecordsSender(options.connection.nameserver, given) as sender:
        try:
            for topic in topics:
                sender.queues(topic)
        except MiniMQError as error:
            if not error.retriable:
                raise
            # A server is away: the tasks wait for it as long as they may.


class Advice(NamedTuple):
    """Advice to the user when a transaction does not end."""

    behind: str
    away: str
    #: A broker has lost what it had staged, before anything was decided.
    expired: str


#: What to do about a broker that never comes back. An empty one knows of nothing, and says so.
_GONE: Final = "instead of a broker that is gone for good, start an empty one under its name"

_STREAM: Final = Advice(
    "the checkpoint of this query is an older copy, or two queries use it; go on from the newest one, or begin anew "
    "with another folder",
    f"start the query again then, which goes on from its checkpoint; {_GONE}",
    "nothing of it is published; start the query again, which computes this micro-batch anew",
)
_NAMED: Final = Advice(
    "nothing is written; txnVersion has to grow from one write with this txnAppId to the next",
    "start the job again then, with the same txnAppId and txnVersion, which brings this write to its end; " + _GONE,
    "nothing of it is published; start the job again, with the same txnAppId and txnVersion",
)
_UNNAMED: Final = Advice(
    "nothing is written",
    "a part of this write may be seen, and nothing goes on with it; one with txnAppId and txnVersion can be started "
    "again",
    "nothing of it is published; write the data frame again",
)

#: What to do when a broker has lost its part of what is decided.
_LOST: Final = (
    "what other brokers have is published, and this part cannot be any more, so starting again does not help; with "
    "failOnDataLoss=false the query goes on without it"
)


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


class MinimqWriter(SentToWorkers):
    """The writer of a data frame or a stream; the two differ in their transactions."""

    advice: Advice

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def transaction(self) -> Transaction:
        """Return that of a transactional write, in a task; raises `MinimqSparkError`."""
        raise NotImplementedError

    @without_traceback
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition, in a task; raises `MinimqSparkError`."""
        # Not needed to plan and to commit: with it come Arrow and pandas, half a second of a processor.
        from pyspark_minimq.writing import write

        return write(self._options, iterator, self.transaction() if self._options.transactional else None)

    def end(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        """Publish what the tasks have staged, if they have."""
        spare_collector()
        self._report_refused(messages)
        staged = [
            message for message in messages if isinstance(message, TaskCommit) and message.transaction is not None
        ]
        transactions = {message.transaction for message in staged if message.transaction is not None}
        if len(transactions) > 1 or any(transaction.number != number for transaction in transactions):
            found = ", ".join(sorted(map(str, transactions)))
            raise MinimqSparkError(
                f"Spark commits number {number}, and its tasks have written for transaction {found}: nothing is "
                "published; start the query again"
            )
        parts = [part for message in staged for part in message.parts]
        decided = any(message.decided for message in staged)
        if not (parts or decided):  # nothing to publish
            return
        [transaction] = transactions
        topics = frozenset[str]().union(*(message.topics for message in staged))
        try:
            committer = transaction_committer(self._options.connection, self._options.commit_timeout_s)
            decision = committer.commit(transaction, topics, parts, decided=decided)
        except errors.TransactionEnded as error:
            raise MinimqSparkError(f"{error.message}: {self.advice.behind}") from None
        except errors.TransactionExpired as error:
            self._look_at_loss(transaction, topics, error)
            return
        except errors.Unavailable as error:
            raise MinimqSparkError(f"{in_one_line(error)}; {self.advice.away}") from None
        except MiniMQError as error:
            raise MinimqSparkError(in_one_line(error)) from None
        if decided or set(decision.parts) != set(parts):
            log.warning("transaction %s was decided before, and is published: nothing is added to it", transaction)

    def _report_refused(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        refusals = [message for message in messages if isinstance(message, TaskCommit) and message.refused]
        if refusals:
            topic = self._options.dead_letter_topic
            log.warning(
                "%d rows make no message, and are %s; the first: %s",
                sum(each.refused for each in refusals),
                "dropped" if topic is None else f"in topic {topic}",
                refusals[0].first_refusal,
            )

    def _look_at_loss(
        self, transaction: Transaction, topics: Collection[str], error: errors.TransactionExpired
    ) -> None:
        committer = transaction_committer(self._options.connection, min(_ABORT_S, self._options.commit_timeout_s))
        try:
            # It decides nothing, so it shows what is decided.
            committer.commit(transaction, topics, (), decided=True)
            return
        except errors.TransactionExpired as lost:
            text = in_one_line(lost)
        except MiniMQError:
            raise MinimqSparkError(f"{in_one_line(error)}; {self.advice.expired}") from None
        if self._options.fail_on_data_loss:
            raise MinimqSparkError(f"{text}; {_LOST}")
        log.warning("%s; failOnDataLoss is false, so it is given up", text)


class MinimqBatchWriter(MinimqWriter, DataSourceArrowWriter):
    """Writes a data frame. One object is made for it, which is copied to the tasks."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self.advice = _UNNAMED if options.transaction is None else _NAMED
        #: Without a name that was given, nobody can go on with this write: the next one is another.
        self._transaction = options.transaction or Transaction(name_of_one_write(), 0)

    def transaction(self) -> Transaction:
        """Return that of the data frame."""
        return self._transaction

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Publish what the tasks have staged, if they have; raises `MinimqSparkError`."""
        self.end(messages, self._transaction.number)

    @without_traceback
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Let go of what is staged, if nobody can go on with it. Rows that are there for all to see stay."""
        if not self._options.transactional or self._options.transaction is not None:
            return
        topics = {topic for message in messages if isinstance(message, TaskCommit) for topic in message.topics}
        if self._options.topic is not None:
            topics.add(self._options.topic)  # also when no task has come to its end, and told
        if not topics:
            return
        try:
            committer = transaction_committer(self._options.connection, min(_ABORT_S, self._options.commit_timeout_s))
            # It consists of nothing, unless it was decided before.
            decision = committer.commit(self._transaction, topics, ())
        except MiniMQError as error:
            log.warning("what transaction %s has staged is left to expire: %s", self._transaction, error.message)
            return
        if decision.parts:
            log.warning("transaction %s was decided before it was given up, and is published", self._transaction)


class MinimqStreamWriter(MinimqWriter, DataSourceStreamArrowWriter):
    """Writes a stream. Objects come and go; the micro-batch that belongs together is known from its number."""

    advice = _STREAM

    def transaction(self) -> Transaction:
        """Return that of the micro-batch to which the task of this process belongs; raises `MinimqSparkError`."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise MinimqSparkError(
                "Spark does not tell this task its query and micro-batch, by which repetitions are recognized: "
                "set transactional=false, which stores each row at least once"
            )
        return Transaction(name_of_query(query, self._options.topic), int(batch))

    @without_traceback
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Publish what the tasks have staged, if they have; raises `MinimqSparkError`."""
        self.end(messages, batchId)

    @without_traceback
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Leave the staged batches: they go when the micro-batch is written anew and committed, or when they expire."""
