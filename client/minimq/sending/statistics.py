"""Counters of a producer, and the latencies of its messages."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

#: Upper bounds of the latency buckets in seconds, from 0.1 ms to 74 s, in steps of 12 %.
BOUNDS_S = tuple(0.0001 * 2 ** (step / 6) for step in range(118))


@dataclass(frozen=True, slots=True)
class LatencyHistogram:
    """Numbers of messages by latency.

    Attributes:
        counts: messages by bucket; bucket i has those of at most `BOUNDS_S[i]` seconds, the last one all longer ones.
        total_s: sum of all latencies in seconds.
    """

    counts: tuple[int, ...]
    total_s: float

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def mean_s(self) -> float:
        """Mean latency in seconds; 0 without messages."""
        return self.total_s / self.count if self.count else 0.0

    def quantile_s(self, share: float) -> float:
        """Return a quantile of the latencies in seconds; `share` is 0 to 1. Returns 0 without messages.

        The result is the upper bound of a bucket: up to 12 % too high, and too low only beyond the last bound, 74 s.
        """
        wanted = share * self.count
        reached = next((index for index, sum_ in enumerate(accumulate(self.counts)) if sum_ and sum_ >= wanted), None)
        return 0.0 if reached is None else BOUNDS_S[min(reached, len(BOUNDS_S) - 1)]


class TransactionTotals(NamedTuple):
    """Numbers of ended transactions of a producer.

    Attributes:
        committed: transactions that are stored.
        rolled_back: transactions whose block raised, or rolled them back.
        failed: transactions whose commit failed; the error says whether they may be stored.
        messages: messages of committed transactions.
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
        since: when it began; an extension does not change it.
        until: when the broker is used again; infinite if it must answer a probe first.
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
    """Counters of a producer since its creation, and its current state.

    Attributes:
        acknowledged: messages with a receipt.
        failed: messages that failed.
        batches: batches with a receipt.
        bytes: encoded size of these batches.
        retries: attempts of batches after their first.
        already_stored: batches whose acknowledgement was lost, so that a retry found them stored.
        latency: time from the send to the receipt; all messages of a batch count with that of its oldest.
        buffered_messages: messages in flight.
        buffered_bytes: bytes that they use in the buffer.
        avoided: brokers that are avoided now, with the reason.
        transactions: those of `Producer.transaction`; their messages are not counted above.
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
    """Counters of one producer. Not thread-safe: changed by a `RecordAccumulator`."""

    def __init__(self) -> None:
        self.acknowledged = self.failed = self.batches = self.bytes = self.retries = self.already_stored = 0
        #: Failed messages that may be stored.
        self.in_doubt = 0
        self.latencies = [0] * (len(BOUNDS_S) + 1)
        self.latency_s = 0.0

    def snapshot(self, buffered: tuple[int, int], avoided: tuple[Exclusion, ...]) -> ProducerStatistics:
        """Return a snapshot of the counters; `buffered` has messages and bytes."""
        return ProducerStatistics(
            self.acknowledged,
            self.failed,
            self.batches,
            self.bytes,
            self.retries,
            self.already_stored,
            LatencyHistogram(tuple(self.latencies), self.latency_s),
            *buffered,
            avoided,
        )
