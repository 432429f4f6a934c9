"""Makes batches of messages, and numbers them."""

from __future__ import annotations

import random
import threading

from minimq.sending.batch_numbers import BatchNumbers
from minimq.sending.outgoing import Lane, OutgoingBatch, Records
from minimq.sending.producer_options import ProducerOptions
from minimq_common.batch_builder import BatchBuilder


class Sealer:
    """The numbers of one producer's batches, and its way to make them. Thread-safe.

    Args:
        options: of the producer.

    Attributes:
        producer_id: 64 random bits; with the number of a batch, its id. Brokers tell by it what was sent before.
    """

    def __init__(self, options: ProducerOptions) -> None:
        self._options = options
        self.producer_id = random.getrandbits(64) or 1  # 0 stands for a producer that does not number its batches
        self._lock = threading.Lock()  # protects the numbers; never held while a batch is made
        self._numbers = BatchNumbers()

    def encode(self, records: Records, born_ms: int | list[int]) -> tuple[bytes, int]:
        """Return records as a batch, and its sequence number. Raises `InvalidArgument`."""
        with self._lock:
            number = self._numbers.begin()
        try:
            return records.build(born_ms, self.producer_id, *number), number.sequence
        except BaseException:
            self.settle(number.sequence)
            raise

    def seal(self, lane: Lane) -> OutgoingBatch:
        """Return what was taken out of a lane as a batch. Raises whatever a message can cause that was changed."""
        records = BatchBuilder(self._options.max_body_bytes, self._options.batch_compression)
        records.add([item.message for item in lane.pending])
        return lane.sealed(*self.encode(records, [item.born_ms for item in lane.pending]))

    def settle(self, sequence: int) -> None:
        """Note that a batch will not be sent again. Idempotent."""
        with self._lock:
            self._numbers.settle(sequence)
