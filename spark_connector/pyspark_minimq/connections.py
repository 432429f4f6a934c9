"""The connections of this process, shared by all tasks that it runs, and the options for them."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from dataclasses import dataclass, replace
from typing import Final, TypeVar, cast

from minimq import Credentials, ProducerOptions
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeOptions, RangeReader
from minimq.errors import InvalidArgument
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq_common.names import check_address
from pyspark_minimq.errors import MinimqSparkError
from pyspark_minimq.option_table import Values

T = TypeVar("T")

#: Timeout for asking a broker for its queues.
_FINDER_TIMEOUT_S: Final = 5.0

#: The key includes the process id, since a forked process inherits this dictionary but must not use its connections.
_kept: dict[Hashable, object] = {}


@dataclass(frozen=True, slots=True)
class ConnectionOptions:
    """A cluster, and the user that connects to it. Its `repr` shows no secrets."""

    nameserver: str | None = None
    credentials: Credentials | None = None


def connection_of(values: Values) -> ConnectionOptions:
    path = values.get("credentials", _credentials_file)
    # Spark does not show the value of an option with "secret" in its name.
    secret = values.get("credentialsSecret", lambda _, text: Credentials.from_text(text))
    if path and secret:
        raise MinimqSparkError(
            "credentials and credentialsSecret are given: write the path of a file that each node has, or its content"
        )
    return ConnectionOptions(values.get("nameserver", _addresses), path or secret)


def _credentials_file(option: str, text: str) -> Credentials:
    try:
        return Credentials(path=text)
    except InvalidArgument as error:
        raise MinimqSparkError(f"{option}: {error.message}; the content goes into credentialsSecret") from None


def _addresses(option: str, text: str) -> str:
    try:
        for address in text.split(","):
            check_address(address.strip())
    except InvalidArgument as error:
        raise MinimqSparkError(f"{option}: {error.message}") from None
    return text


def range_reader(connection: ConnectionOptions, timeout_s: float) -> RangeReader:
    """Return this process's reader for a cluster. It lives as long as the process, for the next tasks."""
    answer_timeout_s = min(RangeOptions().answer_timeout_s, timeout_s)
    options = RangeOptions(max_wait_s=timeout_s, answer_timeout_s=answer_timeout_s, credentials=connection.credentials)
    return _shared((RangeReader, connection, timeout_s), lambda: RangeReader(connection.nameserver, options))


def queue_finder(connection: ConnectionOptions, timeout_s: float) -> QueueFinder:
    """Return a new finder, for a plan."""
    answer_timeout_s = min(_FINDER_TIMEOUT_S, timeout_s)
    return QueueFinder(connection.nameserver, timeout_s=answer_timeout_s, credentials=connection.credentials)


def records_sender(connection: ConnectionOptions, options: ProducerOptions) -> RecordsSender:
    """Return this process's sender for a cluster and options. It lives as long as the process."""
    given = replace(options, credentials=connection.credentials)
    return _shared((RecordsSender, connection, options), lambda: RecordsSender(connection.nameserver, given))


def transaction_committer(connection: ConnectionOptions, max_wait_s: float) -> TransactionCommitter:
    """Return this process's transaction committer for a cluster. It lives as long as the process."""
    return _shared(
        (TransactionCommitter, connection, max_wait_s),
        lambda: TransactionCommitter(connection.nameserver, max_wait_s=max_wait_s, credentials=connection.credentials),
    )


def _shared(key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
    kept = _kept.get((os.getpid(), *key))
    if kept is None:
        kept = _kept.setdefault((os.getpid(), *key), make())
    return cast("T", kept)
