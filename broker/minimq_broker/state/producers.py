"""Deduplication: remembers which batches of each producer are stored, and where.

A producer numbers its batches. Each batch also carries the number below which all are settled, that is, will never be
sent again. The table remembers the batches from that number on. It rejects an unknown one below, which may have been
stored and forgotten.

Each user and topic has its own numbers. Producer ids are not secret, so without this a user could use up the numbers of
another user's producer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from minimq_common.errors import StaleSequence

#: Batches remembered per producer. Normally about ten are unsettled, thousands only while one of them is retried at
#: another broker for seconds. Also bounds a row of the checkpoint to about 2 MiB.
MAX_BATCHES = 1 << 16
#: Producers remembered, counted once per topic; up to 55 MB. A retry follows within seconds, in which far fewer new
#: producers start.
MAX_PRODUCERS = 100_000
#: Batches remembered in total: at most 100 MB of memory and 15 MB of the checkpoint.
MAX_TOTAL = 500_000


class BatchLocation(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The place where a batch is stored.

    If it is held, `held_until_ms` (since 1970) is set, and `base_offset` is its log position: it has no offset yet.
    """

    topic_id: int
    queue_id: int
    base_offset: int
    stored_ms: int
    held_until_ms: int = 0


#: Producer id, topic id and tag of the user. A plain tuple: a named one is slower to create, for each batch.
ProducerKey = tuple[int, int, int]


class ProducerState(msgspec.Struct, array_like=True):
    """The remembered batches of one producer in one topic; also its row in the checkpoint."""

    #: Log position after its latest batch.
    last: int = 0
    settled: int = 0
    sequences: list[int] = []
    #: The places of the batches in `sequences`, which ascend; in the same order.
    places: list[BatchLocation] = []

    def find(self, sequence: int) -> BatchLocation | None:
        """Return the place of a batch, None if it is not remembered."""
        index = bisect_left(self.sequences, sequence)
        return self.places[index] if index < len(self.sequences) and self.sequences[index] == sequence else None


class ProducerTable:
    """The producers of one broker, bounded: the least recently active one is forgotten first."""

    def __init__(
        self, max_producers: int = MAX_PRODUCERS, max_batches: int = MAX_BATCHES, max_total: int = MAX_TOTAL
    ) -> None:
        self._max_producers = max_producers
        self._max_batches = max_batches
        self._max_total = max(max_total, max_batches)
        #: Read-only for others. In order of the latest batch, or unordered after a load until `_shrink` sorts it.
        self.states: OrderedDict[ProducerKey, ProducerState] = OrderedDict()
        self._ordered = True
        self._total = 0

    def __iter__(self) -> Iterator[ProducerKey]:
        return iter(self.states)

    def find(self, key: ProducerKey, sequence: int) -> BatchLocation | None:
        """Return the place of a batch, None if it is not remembered."""
        producer = self.states.get(key)
        return producer.find(sequence) if producer else None

    def add(
        self, key: ProducerKey, sequence: int, settled_before: int, place: BatchLocation, position: int
    ) -> list[ProducerKey]:
        """Remember a batch that ends at log position `position`. Return the producers that were evicted for it."""
        producer = self.states.get(key)
        if producer is None:
            producer = self.states[key] = ProducerState()
        else:
            self.states.move_to_end(key)
        producer.last = position
        sequences, places = producer.sequences, producer.places
        before = len(sequences)
        index = bisect_left(sequences, sequence)
        if sequence >= producer.settled and sequences[index : index + 1] != [sequence]:
            sequences.insert(index, sequence)
            places.insert(index, place)
        if len(sequences) > self._max_batches:
            settled_before = max(settled_before, sequences[-self._max_batches])
        if settled_before > producer.settled:
            producer.settled = settled_before
            gone = bisect_left(sequences, settled_before)
            del sequences[:gone], places[:gone]
        self._total += len(sequences) - before
        is_within = len(self.states) <= self._max_producers and self._total <= self._max_total
        return [] if is_within else self._shrink()

    def forget_topic(self, topic_id: int) -> list[ProducerKey]:
        """Forget the batches of a topic. Return the producers that had any."""
        found = [key for key in self.states if key[1] == topic_id]
        for key in found:
            self._total -= len(self.states.pop(key).sequences)
        return found

    def load(self, key: ProducerKey, row: Any) -> None:
        """Load a row of a checkpoint. Rows may be loaded in any order."""
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
    """A batch that was sent before."""

    place: BatchLocation


class PendingBatches(msgspec.Struct):
    """The batches of one commit group, on top of a `ProducerTable` that does not have them yet. Discarded with it."""

    table: ProducerTable
    places: dict[tuple[ProducerKey, int], BatchLocation] = {}
    settled: dict[ProducerKey, int] = {}

    def find(self, key: ProducerKey, sequence: int) -> BatchLocation | None:
        """Return where a batch is, or will be, stored; None if it is new."""
        settled, producer = self.settled.get(key, 0), self.table.states.get(key)
        if producer is not None:
            settled = max(settled, producer.settled)
            if producer.sequences and sequence <= producer.sequences[-1]:
                place = producer.find(sequence)
                if place is not None:
                    return place
        place = self.places.get((key, sequence))
        if place is not None:
            return place
        if sequence < settled:
            raise StaleSequence(
                f"batch {sequence} of producer {key[0]:016x} comes too late: all batches below {settled} are settled "
                "and forgotten, so it may already be stored"
            )
        return None

    def add(self, key: ProducerKey, sequence: int, settled_before: int, place: BatchLocation) -> None:
        self.places[key, sequence] = place
        if settled_before > self.settled.get(key, 0):
            self.settled[key] = settled_before
