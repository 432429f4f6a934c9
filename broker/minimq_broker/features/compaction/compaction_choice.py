"""Decides which entries compaction keeps of a part of the log."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

from minimq_broker.features.compaction.compacted_batch import BatchPart, compacted
from minimq_broker.features.compaction.compaction_record import CompactionRecord
from minimq_broker.features.compaction.newest_keys import NO_KEY, NewestKeys, are_tombstones, key_names
from minimq_broker.features.compaction.topic_compaction import TopicCompaction
from minimq_broker.log.entry import IN_QUEUE, EntryHeader, EntryKind, batch_entry, payload_of
from minimq_broker.state.state import QueueKey
from minimq_common.batch.header import CODEC_ZSTD
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument

#: Bytes of batches that wait to be joined, over all queues.
_MAX_WAITING = 32 << 20
#: Compression levels to try: a batch compressed with a high level may become larger with a low one.
_LEVELS = (1, 6, 19)


class _Source(NamedTuple):
    position: int
    header: EntryHeader
    entry: bytes
    part: BatchPart
    #: Remaining records, and their estimated bytes.
    left: int
    left_bytes: int


class CompactionChoice:
    """The `Choice` of a `Rewriting` that compacts. Entries must come in log order. Used by one thread."""

    def __init__(
        self, topics: Mapping[int, TopicCompaction], newest: NewestKeys, end: int, record: CompactionRecord, now_ms: int
    ) -> None:
        self._topics, self._newest, self._end = topics, newest, end
        self._record, self._now_ms = record, now_ms
        self.messages = self.removed = self.tombstones = 0
        self.held: set[QueueKey] = set()
        #: Batches that wait to be joined with the next one of their queue.
        self._waiting: dict[QueueKey, list[_Source]] = {}
        self._waiting_bytes = 0
        #: Log position of the next entry to be written.
        self._cursor = 0

    def __call__(self, position: int, header: EntryHeader, entry: memoryview) -> list[tuple[int, bytes]]:
        """Return the entries that replace this one and those before it that no longer wait."""
        source = self.source(position, header, entry)
        if source is None:
            return [*self.rest(), (position, bytes(entry))]
        found = []
        # Do not move a batch to a position of an earlier round: its tombstones would seem to be older than they are.
        if self._waiting_bytes > _MAX_WAITING or self._crosses_round(position):
            found = self.rest()
        if not self._waiting:
            self._cursor = position
        waiting = self._waiting.setdefault(header.queue, [])
        if waiting and not self._joins(waiting, source):
            found += self._placed(waiting)
            waiting.clear()
        waiting.append(source)
        self._waiting_bytes += len(source.entry)
        return found

    def rest(self) -> list[tuple[int, bytes]]:
        """Return the entries that replace all waiting batches."""
        waiting, self._waiting, self._waiting_bytes = self._waiting, {}, 0
        if len(waiting) == 1:
            [sources] = waiting.values()
            if len(sources) == 1:  # a single batch stays at its position
                self._cursor = sources[0].position
        return [placed for sources in waiting.values() for placed in self._placed(sources)]

    def has_work(self, position: int, header: EntryHeader, entry: memoryview) -> bool:
        """Return whether a message of an entry would be removed."""
        source = self.source(position, header, entry)
        return source is not None and not all(source.part.remains)

    def source(self, position: int, header: EntryHeader, entry: memoryview) -> _Source | None:
        """Open the batch in an entry; None if the entry stays as it is."""
        rules = self._topics.get(header.queue.topic_id)
        if rules is None or header.kind not in IN_QUEUE or position >= self._end:
            return None
        try:
            records = RecordBatch(bytes(payload_of(entry)))
            records.check_values()
        except (CorruptBatch, InvalidArgument):  # kept as it is: readers will report it
            return None
        offsets = [header.base_offset + number for number in records.numbers()]
        names = key_names(records)
        remains = self._newest.remain(header.queue, names, offsets)
        since_ms = self._record.since_ms(position, self._now_ms)
        part = BatchPart(header.base_offset, header.stored_ms, since_ms, records, remains)
        tombstones = are_tombstones(records)
        if any(tombstones):
            self._expire_tombstones(header.queue, part, names, tombstones, rules.tombstone_ms)
        return _Source(position, header, bytes(entry), part, part.count, part.left_bytes)

    def _expire_tombstones(
        self, queue: QueueKey, part: BatchPart, names: list[bytes], tombstones: list[bool], stay_ms: int
    ) -> None:
        assert isinstance(part.remains, list)
        is_held = queue in self.held or tuple(queue) in self._record.held
        origins = part.records.origins
        for place, number in enumerate(part.records.numbers()):
            if not tombstones[place] or not part.remains[place] or names[place] == NO_KEY:
                continue
            has_origin = origins is not None and origins.origins
            since_ms = origins.origin(number).thinned_ms if origins and has_origin else part.thinned_ms
            part.remains[place] = is_held or since_ms + stay_ms > self._now_ms

    def _crosses_round(self, position: int) -> bool:
        earlier = next((sources[0].position for sources in self._waiting.values()), position)
        return self._record.since_ms(earlier, self._now_ms) != self._record.since_ms(position, self._now_ms)

    def _joins(self, waiting: Collection[_Source], source: _Source) -> bool:
        size = sum(each.left_bytes for each in waiting) + source.left_bytes
        return source.part.joins(
            [each.part for each in waiting], size, sum(each.left for each in waiting) + source.left
        )

    def _placed(self, sources: list[_Source]) -> list[tuple[int, bytes]]:
        placed = []
        for entry in self._entries(sources):
            placed.append((self._cursor, entry))
            self._cursor += len(entry)
        for source in sources:
            remains = source.part.remains
            self.messages += len(remains)
            self.removed += len(remains) - sum(remains)
            tombstones = are_tombstones(source.part.records)
            self.tombstones += sum(map(min, tombstones, remains))
        return placed

    def _entries(self, sources: list[_Source]) -> list[bytes]:
        if len(sources) > 1:
            first, last = sources[0].header, sources[-1].header
            data = compacted([source.part for source in sources])
            entry = batch_entry(first.queue, first.base_offset, last.stored_ms, data)
            if len(entry) <= sum(len(source.entry) for source in sources):
                return [entry]
        return [self._alone(source) for source in sources]

    def _alone(self, source: _Source) -> bytes:
        if all(source.part.remains):
            return source.entry
        header = source.header
        is_numbered = header.kind is EntryKind.BATCH  # the number of another one belongs to the held batch
        is_compressed = source.part.records.header.codec == CODEC_ZSTD
        for level in _LEVELS if is_compressed else _LEVELS[:1]:
            data = compacted([source.part], level, is_numbered=is_numbered)
            entry = batch_entry(header.queue, header.base_offset, header.stored_ms, data, user=header.user)
            if len(entry) <= len(source.entry):
                return entry
        self.held.add(header.queue)
        source.part.remains[:] = [True] * len(source.part.remains)  # type: ignore[index]
        return source.entry
