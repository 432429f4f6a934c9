"""The stored batches of producers, and where they are, so that a batch that is sent again is not stored again.

A producer numbers its batches and says with each of them which numbers it will never send again. The numbers above are
remembered; one below that is not remembered may have been stored and forgotten, and is refused.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from minimq_common.errors import StaleSequence

#: Batches remembered of one producer. Its windows hold some ten; more pile up only while one of them is tried elsewhere
#: for seconds, during which a producer makes thousands. It is also the bound of a row of the checkpoint: some 2 MiB.
MAX_BATCHES = 1 << 16
#: A repeat comes seconds after the first try: so many producers do not begin to write to one broker within that time.
MAX_PRODUCERS = 10_000
#: Batches remembered of all producers: at most 100 MB of memory, and 15 MB of the checkpoint.
MAX_TOTAL = 500_000


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Where a batch is stored."""

    topic_id: int
    queue_id: int
    base_offset: int
    stored_ms: int


class Producer(msgspec.Struct, array_like=True):
    """The record of one producer; also its row in the checkpoint.

    Attributes:
        last: log position of what it wrote last.
        settled: it will send no sequence number below this.
        sequences: the numbers that are remembered, ascending; none is below `settled`.
        places: where they are stored, in the same order.
    """

    last: int = 0
    settled: int = 0
    sequences: list[int] = []
    places: list[Place] = []

    def find(self, sequence: int) -> Place | None:
        """Return where a batch is stored, None when it is not remembered."""
        index = bisect_left(self.sequences, sequence)
        return self.places[index] if index < len(self.sequences) and self.sequences[index] == sequence else None

    def settle(self, before: int) -> None:
        """Forget all below a sequence number."""
        if before > self.settled:
            self.settled = before
            gone = bisect_left(self.sequences, before)
            del self.sequences[:gone], self.places[:gone]

    def add(self, sequence: int, place: Place) -> None:
        """Remember a batch, unless it is settled or remembered already."""
        if not self.sequences or sequence > self.sequences[-1]:
            if sequence >= self.settled:
                self.sequences.append(sequence)
                self.places.append(place)
            return
        index = bisect_left(self.sequences, sequence)
        if sequence >= self.settled and self.sequences[index : index + 1] != [sequence]:
            self.sequences.insert(index, sequence)
            self.places.insert(index, place)

    def forget_topic(self, topic_id: int) -> None:
        """Forget what is stored in a topic."""
        kept = [index for index, place in enumerate(self.places) if place.topic_id != topic_id]
        self.sequences = [self.sequences[index] for index in kept]
        self.places = [self.places[index] for index in kept]


class ProducerTable:
    """The producers that wrote to one broker, within bounds: those that wrote least recently are forgotten first.

    What it holds depends only on what was added in which order. Used by the thread that changes the state.
    """

    def __init__(
        self, max_producers: int = MAX_PRODUCERS, max_batches: int = MAX_BATCHES, max_total: int = MAX_TOTAL
    ) -> None:
        self._max_producers = max_producers
        self._max_batches = max_batches
        self._max_total = max(max_total, max_batches)
        #: In the order of their latest batches, unless they were loaded and that has not mattered yet.
        self._producers: OrderedDict[int, Producer] = OrderedDict()
        self._ordered = True
        self._total = 0

    def __iter__(self) -> Iterator[int]:
        return iter(self._producers)

    def find(self, producer_id: int, sequence: int) -> Place | None:
        """Return where a batch is stored, None when it is not remembered."""
        producer = self._producers.get(producer_id)
        return producer.find(sequence) if producer else None

    def settled(self, producer_id: int) -> int:
        """Return the sequence number below which a producer sends nothing any more; 0 when it is not known."""
        producer = self._producers.get(producer_id)
        return producer.settled if producer else 0

    def add(self, producer_id: int, sequence: int, settled_before: int, place: Place, position: int) -> list[int]:
        """Remember a batch that ends at a log position. Returns the producers that are forgotten for it."""
        producer = self._producers.get(producer_id)
        if producer is None:
            producer = self._producers[producer_id] = Producer()
        else:
            self._producers.move_to_end(producer_id)
        producer.last = position
        before = len(producer.sequences)
        producer.settle(settled_before)
        producer.add(sequence, place)
        if len(producer.sequences) > self._max_batches:
            producer.settle(producer.sequences[-self._max_batches])
        self._total += len(producer.sequences) - before
        return self._shrink()

    def forget_topic(self, topic_id: int) -> list[int]:
        """Forget what is stored in a topic. Returns the producers that had written to it."""
        found = [
            producer_id
            for producer_id, producer in self._producers.items()
            if any(place.topic_id == topic_id for place in producer.places)
        ]
        for producer_id in found:
            producer = self._producers[producer_id]
            before = len(producer.sequences)
            producer.forget_topic(topic_id)
            self._total += len(producer.sequences) - before
        return found

    def row(self, producer_id: int) -> Producer | None:
        """Return what the checkpoint holds of a producer, to be saved at once; None when it is forgotten."""
        return self._producers.get(producer_id)

    def load(self, producer_id: int, row: Any) -> None:  # noqa: ANN401 - as it was decoded
        """Take a row of a checkpoint in; they may come in any order."""
        producer = self._producers[producer_id] = msgspec.convert(row, Producer)
        self._total += len(producer.sequences)
        self._ordered = False

    def _shrink(self) -> list[int]:
        """Forget producers until all is within the bounds, and return them."""
        forgotten = []
        while len(self._producers) > self._max_producers or self._total > self._max_total:
            if not self._ordered:
                self._producers = OrderedDict(sorted(self._producers.items(), key=lambda item: item[1].last))
                self._ordered = True
            producer_id, producer = self._producers.popitem(last=False)
            self._total -= len(producer.sequences)
            forgotten.append(producer_id)
        return forgotten


class Repeated(NamedTuple):
    """A batch that was sent before: where it is, and whether it is in the table already."""

    place: Place
    applied: bool


class PendingBatches:
    """Batches that are to be written together, on top of a table that does not know of them; thrown away after it."""

    def __init__(self, table: ProducerTable) -> None:
        self._table = table
        self._places: dict[tuple[int, int], Place] = {}
        self._settled: dict[int, int] = {}

    def find(self, producer_id: int, sequence: int) -> Repeated | None:
        """Return where a batch was, or will be, stored; None when it is new.

        Raises:
            StaleSequence: it cannot be told whether it was stored.
        """
        place = self._table.find(producer_id, sequence)
        if place is not None:
            return Repeated(place, applied=True)
        place = self._places.get((producer_id, sequence))
        if place is not None:
            return Repeated(place, applied=False)
        settled = max(self._table.settled(producer_id), self._settled.get(producer_id, 0))
        if sequence < settled:
            raise StaleSequence(
                f"batch {sequence} of producer {producer_id:016x} comes too late: all below {settled} are settled "
                "and forgotten, so that it may be stored already"
            )
        return None

    def add(self, producer_id: int, sequence: int, settled_before: int, place: Place) -> None:
        """Note a batch that will be written."""
        self._places[producer_id, sequence] = place
        if settled_before > self._settled.get(producer_id, 0):
            self._settled[producer_id] = settled_before
