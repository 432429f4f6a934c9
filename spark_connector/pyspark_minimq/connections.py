"""The connections of this process, shared by all the tasks that it runs."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable
from typing import TypeVar, cast

from minimq import ProducerOptions
from minimq.connectors import RangeOptions, RangeReader, RecordsSender, TransactionCommitter

T = TypeVar("T")

#: By process as well, because a forked process inherits this dictionary but must not use the connections in it.
_kept: dict[Hashable, object] = {}


def range_reader(nameserver: str, timeout_s: float) -> RangeReader:
    """Return this process's reader for a cluster. It is kept for as long as the process lives: tasks follow in it.

    Args:
        nameserver: HOST:PORT of each name server, separated by commas.
        timeout_s: seconds without any progress after which a read fails.

    Raises:
        minimq.MiniMQError: an address is not HOST:PORT.
    """
    answer_timeout_s = min(RangeOptions().answer_timeout_s, timeout_s)
    options = RangeOptions(patience_s=timeout_s, answer_timeout_s=answer_timeout_s)
    return _shared((RangeReader, nameserver, timeout_s), lambda: RangeReader(nameserver, options))


def records_sender(nameserver: str, options: ProducerOptions) -> RecordsSender:
    """Return this process's sender for a cluster and a way to send, kept as a reader is; raises as for that."""
    return _shared((RecordsSender, nameserver, options), lambda: RecordsSender(nameserver, options))


def transaction_committer(nameserver: str, patience_s: float) -> TransactionCommitter:
    """Return what ends transactions of this process at a cluster, kept as a reader is; raises as for that."""
    return _shared(
        (TransactionCommitter, nameserver, patience_s), lambda: TransactionCommitter(nameserver, patience_s=patience_s)
    )


def _shared(key: tuple[Hashable, ...], make: Callable[[], T]) -> T:
    kept = _kept.get((os.getpid(), *key))
    if kept is None:
        kept = _kept.setdefault((os.getpid(), *key), make())
    return cast("T", kept)
