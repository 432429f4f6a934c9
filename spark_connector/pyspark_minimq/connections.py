"""The connections of this process, shared by all the tasks that it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Final, TypeVar, cast

from minimq import ProducerOptions
from minimq.connectors import QueueFinder, RangeOptions, RangeReader, RecordsSender, TransactionCommitter
from pyspark_minimq.connection_options import ConnectionOptions

T = TypeVar("T")

#: Seconds after which a broker that was asked for its queues counts as silent.
_FINDER_TIMEOUT_S: Final = 5.0

#: By process as well, because a forked process inherits this dictionary but must not use the connections in it.
_kept: dict[Hashable, object] = {}


def range_reader(connection: ConnectionOptions, timeout_s: float) -> RangeReader:
    """Return this process's reader for a cluster. It is kept for as long as the process lives: tasks follow in it."""
    answer_timeout_s = min(RangeOptions().answer_timeout_s, timeout_s)
    options = RangeOptions(patience_s=timeout_s, answer_timeout_s=answer_timeout_s, credentials=connection.credentials)
    return _shared((RangeReader, connection, timeout_s), lambda: RangeReader(connection.nameserver, options))


def queue_finder(connection: ConnectionOptions, timeout_s: float) -> QueueFinder:
    """Return a new finder for a plan; raises as for a reader."""
    answer_timeout_s = min(_FINDER_TIMEOUT_S, timeout_s)
    return QueueFinder(connection.nameserver, timeout_s=answer_timeout_s, credentials=connection.credentials)


def records_sender(connection: ConnectionOptions, options: ProducerOptions) -> RecordsSender:
    """Return this process's sender for a cluster and a way to send, kept as a reader is; raises as for that."""
    given = replace(options, credentials=connection.credentials)
    return _shared((RecordsSender, connection, options), lambda: RecordsSender(connection.nameserver, given))


def transaction_committer(connection: ConnectionOptions, patience_s: float) -> TransactionCommitter:
    """Return what ends transactions of this process at a cluster, kept as a reader is; raises as for that."""
    return _shared(
        (TransactionCommitter, connection, patience_s),
        lambda: TransactionCommitter(connection.nameserver, patience_s=patience_s, credentials=connection.credentials),
    )


def _shared(key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
    kept = _kept.get((os.getpid(), *key))
    if kept is None:
        kept = _kept.setdefault((os.getpid(), *key), make())
    return cast("T", kept)
