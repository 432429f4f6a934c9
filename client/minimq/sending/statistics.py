"""Counters of a producer, and the latencies of its messages."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

#: Upper bounds of the classes of latency in seconds, from 0.1 ms to 74 s, each 12 % above the one before.
BOUNDS_S = tuple(0.0001 * 2 ** (step / 6) for step in range(118))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Numbers of messages by latency.

    Attributes:
        counts: messages by class; class i holds those of at most `BOUNDS_S[i]` seconds, the last one all longer ones.
        total_s: seconds of all messages together.
    """

    counts: tuple[int, ...]
    total_s: float

    @property
    def count(self) -> int:
        """Number of messages."""
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        """Mean latency in seconds; 0 without messages."""
        return self.total_s / self.count if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """Return the latency in seconds that this share of the messages, 0 to 1, kept to; 0 without messages.

        It is the upper bound of its class, so up to 12 % too long, and never too short but above the last bound.
        """
        wanted = share * self.count
        reached = next((index for index, sum_ in enumerate(accumulate(self.counts)) if sum_ and sum_ >= wanted), None)
        return 0.0 if reached is None else BOUNDS_S[min(reached, len(BOUNDS_S) - 1)]


class TransactionTotals(NamedTuple):
    """Numbers of transactions of a producer that have ended.

    Attributes:
        committed: they are stored.
        rolled_back: their block has raised, or rolled them back.
        failed: their commit has failed; the error said whether it may be stored.
        messages: of those that are stored.
    """

    committed: int = 0
    rolled_back: int = 0
    failed: int = 0
    messages: int = 0


NO_TRANSACTIONS = TransactionTotals()


@dataclass(frozen=True, slots=True)
class Exclusion:
    """The exclusion of a broker. Times are seconds on the monotonic clock.

    Attributes:
        broker_name: the broker.
        since: when it began; later extensions belong to it.
        until: first moment at which the broker is available again; infinite for one that has to answer first.
        reason: the reason for `until`.
        unreachable: whether the broker does not answer.
    """

    broker_name: str
    since: float
    until: float
    reason: str
    unreachable: bool = False


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    """Counters of a producer since it was made, and its state now.

    Attributes:
        acknowledged: messages with a receipt.
        failed: failed messages.
        batches: batches with a receipt.
        bytes: size of these batches, as they travelled.
        retries: tries after the first one of their batch.
        already_stored: batches whose acknowledgement was lost, so that a retry found them stored.
        latency: from handing in to receipt, by the oldest message of each batch.
        buffered_messages: messages in flight.
        buffered_bytes: bytes that they use in the buffer.
        avoided: brokers that are left out now, with the reason.
        transactions: those of `Producer.transaction`; their messages are not among those above.
    """

    acknowledged: int
    failed: int
    batches: int
    bytes: int
    retries: int
    already_stored: int
    latency: LatencyHistogram
    buffered_messages: int
    buffered_bytes: int
    avoided: tuple[Exclusion, ...]
    transactions: TransactionTotals = NO_TRANSACTIONS


class SendCounters:
    """Counts for one producer. Not thread-safe: it belongs to a `RecordAccumulator`."""

    def __init__(self) -> None:
        self._acknowledged = self._failed = self._batches = self._bytes = self._retries = self._already_stored = 0
        self._latencies = [0] * (len(BOUNDS_S) + 1)
        self._latency_s = 0.0

    def acknowledged(self, messages: int, size: int, latency_s: float, *, already_stored: bool) -> None:
        """A batch got its receipt."""
        self._acknowledged += messages
        self._batches += 1
        self._bytes += size
        self._already_stored += already_stored
        self._latencies[bisect_left(BOUNDS_S, latency_s)] += messages
        self._latency_s += messages * latency_s

    def failed(self, messages: int) -> None:
        """Count failed messages."""
        self._failed += messages

    def retried(self) -> None:
        """A batch is tried again."""
        self._retries += 1

    def snapshot(self, buffered: tuple[int, int], avoided: tuple[Exclusion, ...]) -> ProducerStatistics:
        """Return a snapshot of the counters, with the buffered messages and bytes, and the avoided brokers."""
        return ProducerStatistics(
            self._acknowledged,
            self._failed,
            self._batches,
            self._bytes,
            self._retries,
            self._already_stored,
            LatencyHistogram(tuple(self._latencies), self._latency_s),
            *buffered,
            avoided,
        )
