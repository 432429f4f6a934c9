"""The stored batches of producers, and where they are, so that a batch that is sent again is not stored again.

A producer numbers its batches and says with each of them which numbers it will never send again. The numbers above are
remembered; one below that is not remembered may have been stored and forgotten, and is refused.

The numbers of a producer are apart in each topic: its id is no secret, and whoever may write to one topic must not be
able to use up those of another one.
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
#: A repeat comes seconds after the first try: so many producers do not begin to write to one broker within that time,
#: each counted once for each topic. They take up to 55 MB.
MAX_PRODUCERS = 100_000
#: Batches remembered of all producers: at most 100 MB of memory, and 15 MB of the checkpoint.
MAX_TOTAL = 500_000


class Place(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place where a batch is stored.

    One that was delayed is due at a time, in ms since 1970, and its offset stands for its id; it has none in its queue.
    """

    topic_id: int
    queue_id: int
    base_offset: int
    stored_ms: int
    due_ms: int = 0


#: A producer in one topic, by the ids of both; a named tuple would cost each batch more.
ProducerKey = tuple[int, int]


class ProducerState(msgspec.Struct, array_like=True):
    """The record of one producer in one topic; also its row in the checkpoint."""

    last: int = 0
    settled: int = 0
    sequences: list[int] = []
    #: Where they are stored, in the same order.
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


class ProducerTable:
    """The producers that wrote to one broker, each once for each topic, within bounds.

    The one that wrote least recently is forgotten first.
    What it holds depends only on what was added in which order. Used by the thread that changes the state.
    """

    def __init__(
        self, max_producers: int = MAX_PRODUCERS, max_batches: int = MAX_BATCHES, max_total: int = MAX_TOTAL
    ) -> None:
        self._max_producers = max_producers
        self._max_batches = max_batches
        self._max_total = max(max_total, max_batches)
        #: In the order of their latest batches, unless they were loaded and that has not mattered yet. Only to look at.
        self.states: OrderedDict[ProducerKey, ProducerState] = OrderedDict()
        self._ordered = True
        self._total = 0

    def __iter__(self) -> Iterator[ProducerKey]:
        return iter(self.states)

    def find(self, key: ProducerKey, sequence: int) -> Place | None:
        """Return where a batch is stored, None when it is not remembered."""
        producer = self.states.get(key)
        return producer.find(sequence) if producer else None

    def settled(self, key: ProducerKey) -> int:
        """Return the sequence number below which a producer sends nothing any more; 0 when it is not known."""
        producer = self.states.get(key)
        return producer.settled if producer else 0

    def add(
        self, producer_id: int, sequence: int, settled_before: int, place: Place, position: int
    ) -> list[ProducerKey]:
        """Remember a batch that ends at a log position. Returns the producers that are forgotten for it."""
        key = producer_id, place.topic_id
        producer = self.states.get(key)
        if producer is None:
            producer = self.states[key] = ProducerState()
        else:
            self.states.move_to_end(key)
        producer.last = position
        sequences = producer.sequences
        before = len(sequences)
        if settled_before > producer.settled:
            producer.settle(settled_before)
        if sequence >= producer.settled and (not sequences or sequence > sequences[-1]):  # as nearly always
            sequences.append(sequence)
            producer.places.append(place)
        else:
            producer.add(sequence, place)
        if len(sequences) > self._max_batches:
            producer.settle(sequences[-self._max_batches])
        self._total += len(sequences) - before
        is_within = len(self.states) <= self._max_producers and self._total <= self._max_total
        return [] if is_within else self._shrink()

    def forget_topic(self, topic_id: int) -> list[ProducerKey]:
        """Forget all about a topic. Returns the producers that had written to it."""
        found = [key for key in self.states if key[1] == topic_id]
        for key in found:
            self._total -= len(self.states.pop(key).sequences)
        return found

    def load(self, key: ProducerKey, row: Any) -> None:
        """Take a row of a checkpoint in; they may come in any order."""
        producer = msgspec.convert(row, ProducerState)
        replaced = self.states.get(key, ProducerState())
        self.states[key] = producer
        self._total += len(producer.sequences) - len(replaced.sequences)
        self._ordered = False

    def _shrink(self) -> list[ProducerKey]:
        forgotten = []
        while len(self.states) > self._max_producers or self._total > self._max_total:
            if not self._ordered:
                self.states = OrderedDict(sorted(self.states.items(), key=lambda item: item[1].last))
                self._ordered = True
            key, producer = self.states.popitem(last=False)
            self._total -= len(producer.sequences)
            forgotten.append(key)
        return forgotten


class Repeated(NamedTuple):
    """A batch that was sent before: where it is, and whether it is in the table already."""

    place: Place
    applied: bool


class PendingBatches:
    """Batches that are to be written together, on top of a table that does not know of them; thrown away after it."""

    def __init__(self, table: ProducerTable) -> None:
        self._table = table.states
        self._places: dict[tuple[ProducerKey, int], Place] = {}
        self._settled: dict[ProducerKey, int] = {}

    def find(self, key: ProducerKey, sequence: int) -> Repeated | None:
        """Return where a batch was, or will be, stored; None when it is new."""
        settled, producer = self._settled.get(key, 0), self._table.get(key)
        if producer is not None:
            settled = max(settled, producer.settled)
            if producer.sequences and sequence <= producer.sequences[-1]:
                place = producer.find(sequence)
                if place is not None:
                    return Repeated(place, applied=True)
        place = self._places.get((key, sequence))
        if place is not None:
            return Repeated(place, applied=False)
        if sequence < settled:
            raise StaleSequence(
                f"batch {sequence} of producer {key[0]:016x} comes too late: all below {settled} are settled "
                "and forgotten, so that it may be stored already"
            )
        return None

    def add(self, producer_id: int, sequence: int, settled_before: int, place: Place) -> None:
        """Note a batch that will be written."""
        key = producer_id, place.topic_id
        self._places[key, sequence] = place
        if settled_before > self._settled.get(key, 0):
            self._settled[key] = settled_before
