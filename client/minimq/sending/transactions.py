"""Ending transactions over several brokers."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from types import TracebackType
from typing import Self

from minimq.options import DEFAULT_NAMESERVER
from minimq.sending.decisions import Decision, StagedPart, Transaction


class TransactionEnds:
    """Commits transactions whose batches were staged with `RecordsSender.send`. Thread-safe; a context manager.

    Args:
        nameserver: "HOST:PORT[,HOST:PORT]", or a sequence of addresses.
        timeout_s: seconds that one call to a server may take.
        patience_s: seconds to wait for servers that are away or busy, as long as nothing goes on.

    Raises:
        InvalidArgument: an address is wrong.
    """

    def __init__(
        self,
        nameserver: str | Sequence[str] = DEFAULT_NAMESERVER,
        *,
        timeout_s: float = 5.0,
        patience_s: float = 60.0,
    ) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close."""
        self.close()

    def commit(
        self,
        transaction: Transaction,
        topics: Collection[str],
        parts: Sequence[StagedPart],
        *,
        decided: bool = False,
    ) -> Decision:
        """Publish what was staged, at all brokers or at none, and return when readers see all of it.

        May be repeated, by this process or by another one, with the same parts or with others that were staged since:
        of all attempts under one number one is published, the first that was decided, and the others are let go of.

        Args:
            transaction: to be ended.
            topics: all to which it has written, also in attempts that failed.
            parts: what this attempt has staged, and only what it has receipts for; see `staged_parts`. The order is
                that in which each broker publishes them.
            decided: a broker has refused to stage something with `TransactionEnded`, so that `parts` is not all: an
                earlier attempt is decided, and is brought to its end.

        Returns:
            The decision that stands, which may be that of an earlier attempt.

        Raises:
            TransactionEnded: a later number is decided: another writer of that name is ahead.
            TransactionExpired: a broker has let go of something that was staged. The text names it.
            Unavailable: a broker whose answer is needed was not reached for so long. The text names it, and whether
                the transaction is decided; commit again.
            InvalidArgument: there is neither a topic nor a part.
            Closed: it is closed.
            MiniMQError: another refusal that waiting does not change.
        """
        raise NotImplementedError

    def close(self) -> None:
        """End all connections; later calls raise `Closed`. Idempotent."""
        raise NotImplementedError
