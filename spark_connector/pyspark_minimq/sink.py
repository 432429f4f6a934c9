"""The writers of data frames and streams."""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

from pyspark import TaskContext
from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from minimq import MinimqError, errors
from minimq.features.transactions.decisions import Transaction
from minimq.features.transactions.transactions import RecordsSender
from pyspark_minimq.connections import transaction_committer
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.expected_errors import in_one_line, spark_errors
from pyspark_minimq.task_commit import TaskCommit
from pyspark_minimq.worker_process import WorkerPickle, freeze_gc
from pyspark_minimq.write_options import WriteOptions, name_of_one_write, name_of_query

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

#: Local properties of a task. The id of a query stays the same when it is restarted from its checkpoint.
_QUERY_ID = "sql.streaming.queryId"
_BATCH_ID = "streaming.sql.batchId"


#: Timeout for brokers after a failed write, to drop staged batches or to learn the outcome.
_ABORT_S: Final = 5.0
#: Timeout for looking up the topic while a write is planned.
_LOOK_S: Final = 1.0


def check_topic(options: WriteOptions) -> None:
    """Raise an error now if the topic of a write does not exist; for tasks, Spark would repeat it over pages."""
    topics = [topic for topic in (options.topic, options.dead_letter_topic) if topic is not None]
    if not topics:
        return
    given = replace(options.producer, send_timeout_s=_LOOK_S, credentials=options.connection.credentials)
    with RecordsSender(options.connection.nameserver, given) as sender:
        try:
            for topic in topics:
                sender.queues(topic)
        except MinimqError as error:
            if not error.retriable:
                raise
            # A server is offline; the tasks wait for it with a longer timeout.


class CommitHints(NamedTuple):
    """Advice to the user if a transaction cannot be committed."""

    #: A later transaction of the same name is decided already.
    behind: str
    #: A broker does not answer.
    offline: str
    #: A broker has lost its staged batches before the decision.
    expired: str


#: An empty broker under the same name answers that it has nothing staged, so the transaction can end.
_GONE_REMEDY: Final = "to replace a broker that is gone for good, start an empty one with its name"

_STREAM: Final = CommitHints(
    "the checkpoint of this query is an older copy, or two queries use it; continue from the newest one, or begin "
    "with another folder",
    f"then restart the query, which continues from its checkpoint; {_GONE_REMEDY}",
    "nothing of it is published; restart the query, which repeats this micro-batch",
)
_NAMED: Final = CommitHints(
    "nothing is written; txnVersion has to grow from one write with this txnAppId to the next",
    "then restart the job with the same txnAppId and txnVersion, which completes this write; " + _GONE_REMEDY,
    "nothing of it is published; restart the job with the same txnAppId and txnVersion",
)
_UNNAMED: Final = CommitHints(
    "nothing is written",
    "a part of this write may be visible, and it cannot be continued; a write with txnAppId and txnVersion can be "
    "restarted",
    "nothing of it is published; write the data frame again",
)

#: A broker has lost its staged batches after the decision.
_LOST_REMEDY: Final = (
    "the parts on other brokers are published, and this part is lost, so a restart does not help; with "
    "failOnDataLoss=false the query continues without it"
)


class MinimqWriter(WorkerPickle):
    """The common part of the writers, which differ in their transactions."""

    advice: CommitHints

    def __init__(self, options: WriteOptions) -> None:
        self._options = options

    def transaction(self) -> Transaction:
        """Return the transaction of this write. Called in tasks. Raises `MinimqSparkError`."""
        raise NotImplementedError

    @spark_errors()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Write the rows of a partition. Called in tasks. Raises `MinimqSparkError`."""
        # Imported here, since planning and committing do not need Arrow and pandas, which take 0.5 s of CPU to load.
        from pyspark_minimq.writing import write

        return write(self._options, iterator, self.transaction() if self._options.transactional else None)

    def end(self, messages: Sequence[WriterCommitMessage | None], number: int) -> None:
        """Commit the transaction, if the tasks have staged anything."""
        freeze_gc()
        self._report_rejected(messages)
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
            self._handle_loss(transaction, topics, error)
            return
        except errors.Unavailable as error:
            raise MinimqSparkError(f"{in_one_line(error)}; {self.advice.offline}") from None
        except MinimqError as error:
            raise MinimqSparkError(in_one_line(error)) from None
        if decided or set(decision.parts) != set(parts):
            log.warning("transaction %s was decided before, and is published: nothing is added to it", transaction)

    def _report_rejected(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        rejections = [message for message in messages if isinstance(message, TaskCommit) and message.rejected]
        if rejections:
            topic = self._options.dead_letter_topic
            log.warning(
                "%d rows make no message, and are %s; the first: %s",
                sum(each.rejected for each in rejections),
                "dropped" if topic is None else f"in topic {topic}",
                rejections[0].first_rejection,
            )

    def _handle_loss(self, transaction: Transaction, topics: Collection[str], error: errors.TransactionExpired) -> None:
        committer = transaction_committer(self._options.connection, min(_ABORT_S, self._options.commit_timeout_s))
        try:
            # With `decided` this makes no decision; it only completes the existing one.
            committer.commit(transaction, topics, (), decided=True)
            return
        except errors.TransactionExpired as lost:
            text = in_one_line(lost)
        except MinimqError:
            raise MinimqSparkError(f"{in_one_line(error)}; {self.advice.expired}") from None
        if self._options.fail_on_data_loss:
            raise MinimqSparkError(f"{text}; {_LOST_REMEDY}")
        log.warning("%s; failOnDataLoss is false, so it is given up", text)


class MinimqBatchWriter(MinimqWriter, DataSourceArrowWriter):
    """Writes a data frame. Spark copies one object to all tasks."""

    def __init__(self, options: WriteOptions) -> None:
        super().__init__(options)
        self.advice = _UNNAMED if options.transaction is None else _NAMED
        #: Without a given name, a failed write cannot be continued, since the next one has another name.
        self._transaction = options.transaction or Transaction(name_of_one_write(), 0)

    def transaction(self) -> Transaction:
        return self._transaction

    @spark_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Commit the transaction, if the tasks have staged anything. Raises `MinimqSparkError`."""
        self.end(messages, self._transaction.number)

    @spark_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Drop staged batches, unless the write can be continued. Rows that are visible already stay."""
        if not self._options.transactional or self._options.transaction is not None:
            return
        topics = {topic for message in messages if isinstance(message, TaskCommit) for topic in message.topics}
        if self._options.topic is not None:
            topics.add(self._options.topic)  # in case that no task has finished and reported it
        if not topics:
            return
        try:
            committer = transaction_committer(self._options.connection, min(_ABORT_S, self._options.commit_timeout_s))
            # Decides that nothing is published, unless the transaction was decided before.
            decision = committer.commit(self._transaction, topics, ())
        except MinimqError as error:
            log.warning("what transaction %s has staged is left to expire: %s", self._transaction, error.message)
            return
        if decision.parts:
            log.warning("transaction %s was decided before it was given up, and is published", self._transaction)


class MinimqStreamWriter(MinimqWriter, DataSourceStreamArrowWriter):
    """Writes a stream. Spark creates many objects; the number of the micro-batch identifies its transaction."""

    advice = _STREAM

    def transaction(self) -> Transaction:
        """Return the transaction of the current task's micro-batch. Raises `MinimqSparkError`."""
        context = TaskContext.get()
        query = context.getLocalProperty(_QUERY_ID) if context is not None else None
        batch = context.getLocalProperty(_BATCH_ID) if context is not None else None
        if query is None or batch is None:
            raise MinimqSparkError(
                "Spark does not tell this task its query and micro-batch, by which repetitions are recognized: "
                "set transactional=false, which stores each row at least once"
            )
        return Transaction(name_of_query(query, self._options.topic), int(batch))

    @spark_errors()
    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the transaction, if the tasks have staged anything. Raises `MinimqSparkError`."""
        self.end(messages, batchId)

    @spark_errors()
    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: staged batches are dropped when the repeated micro-batch is committed, or when they expire."""
