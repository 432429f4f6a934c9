"""A compaction round, in small steps: finds the newest offset of each key, then rewrites segments.

It reads the log from the end of the previous round to where its memory for keys is full. Then it rewrites all segments
up to there, oldest first. So a tombstone outlives all messages that it deletes, even if the round is interrupted.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing

from minimq_broker.features.compaction.compaction_choice import CompactionChoice
from minimq_broker.features.compaction.compaction_record import CompactionRecord
from minimq_broker.features.compaction.newest_keys import NewestKeys, key_names
from minimq_broker.features.compaction.topic_compaction import TopicCompaction
from minimq_broker.features.feature import Pins
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.entry import IN_QUEUE, EntryHeader, payload_of, read_header
from minimq_broker.log.rewriting import Rewriting
from minimq_broker.log.segment import Segment
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument

_STEP_ENTRIES = 32
_STEP_BYTES = 256 << 10


class CompactionRound:
    """One compaction round. Used by one thread at a time. The log may change between steps."""

    def __init__(
        self,
        log: CommitLog,
        topics: Mapping[int, TopicCompaction],
        record: CompactionRecord,
        *,
        limit: int,
        lowest_needed: Callable[[], int],
        now_ms: int,
        most_keys: int,
        segment_bytes: int,
        pins: Callable[[], Sequence[Pins]],
    ) -> None:
        self._pins, self._lowest_needed = pins, lowest_needed
        self._log, self._topics, self._record = log, topics, record
        self._now_ms, self._segment_bytes = now_ms, segment_bytes
        self._newest = NewestKeys(most_keys)
        self.messages = self.removed = self.rewritten = 0
        self._tombstones = 0
        self._held: set[tuple[int, int]] = set()
        #: The round goes through segments that end at or before `limit`: a segment ends where the next one starts.
        starts = [segment.start for segment in log.segments if segment.start <= limit]
        self._end = starts[-1] if starts else 0

    @property
    def has_advanced(self) -> bool:
        """True if the round compacts more of the log than earlier ones."""
        return self._end > self._record.position

    def done(self) -> CompactionRecord:
        """Return the record that includes this round. Call it once the round is finished."""
        return self._record.after(self._end, self._now_ms, self._tombstones, sorted(self._held))

    # No read transaction is open between two steps, so that none keeps pages of the files in use.

    def run(self) -> Generator[None, None, bool]:
        """Run the round in small steps; return False if it could not be finished."""
        yield from self._map()
        position = 0
        while group := self._group_from(position):
            position = self._end_of(group[-1])
            yield
            if not any(map(self._has_topics, group)):
                continue
            if position > self._record.position or (yield from self._has_work(group)):
                if not (yield from self._rewrite(group, position)):
                    return False
            else:
                self._tombstones += self._record.tombstones and 1
        return True

    def _map(self) -> Iterator[None]:
        position = self._record.position
        while position < self._end and (segment := self._segment_at(position)) is not None:
            end = self._end_of(segment)
            for entries in self._entries(segment, position) if self._has_topics(segment) else ():
                for at, header, entry in entries:
                    if not self._note(header, entry):
                        self._end = at
                        return
                yield
            position = end

    def _note(self, header: EntryHeader, entry: bytes) -> bool:
        # Returns False if the round must end ahead of the entry.
        rules = self._topics.get(header.queue.topic_id)
        if rules is None or header.kind not in IN_QUEUE:
            return True
        if self._newest.is_full or header.stored_ms + rules.min_lag_ms > self._now_ms:
            return False
        try:
            records = RecordBatch(bytes(payload_of(memoryview(entry))))
            offsets = [header.base_offset + number for number in records.numbers()]
            self._newest.add(header.queue, key_names(records), offsets)
        except (CorruptBatch, InvalidArgument):
            pass  # consumers cannot read it either
        return True

    def _has_work(self, group: list[Segment]) -> Generator[None, None, bool]:
        choice = self._new_choice()
        for segment in group:
            for entries in self._entries(segment, segment.start):
                if any(choice.has_work(at, header, memoryview(entry)) for at, header, entry in entries):
                    return True
                yield
        return False

    def _rewrite(self, group: list[Segment], end: int) -> Generator[None, None, bool]:
        choice = self._new_choice()
        made = Rewriting(self._log, group, end, choice, self._pins(), choice.rest)
        with closing(made):
            while made.step(_STEP_BYTES, _STEP_ENTRIES):
                yield
            with self._log.kept:  # no copy of the log may begin between the check and the change
                if end > self._lowest_needed() or not made.put_in_place():
                    return False
        self.rewritten += len(group)
        self.messages += choice.messages
        self.removed += choice.removed
        self._tombstones += choice.tombstones
        self._held.update((queue.topic_id, queue.queue_id) for queue in choice.held)
        yield
        return True

    def _new_choice(self) -> CompactionChoice:
        return CompactionChoice(self._topics, self._newest, self._end, self._record, self._now_ms)

    def _entries(self, segment: Segment, position: int) -> Iterator[list[tuple[int, EntryHeader, bytes]]]:
        while True:
            found, size = [], 0
            with closing(segment.entries(position)) as entries:
                for at, entry in entries:
                    found.append((at, read_header(entry, at), bytes(entry)))
                    position, size = at + 1, size + len(entry)
                    if len(found) >= _STEP_ENTRIES or size >= _STEP_BYTES:
                        break
            if not found:
                return
            yield found

    def _group_from(self, position: int) -> list[Segment]:
        group: list[Segment] = []
        size = 0
        for segment in self._log.segments[:-1]:
            if segment.start < position:
                continue
            if segment.start >= self._end or (group and size + segment.used_bytes > self._segment_bytes):
                break
            group.append(segment)
            size += segment.used_bytes
        return group

    def _segment_at(self, position: int) -> Segment | None:
        return next((each for each in self._log.segments[:-1] if self._end_of(each) > position), None)

    def _end_of(self, segment: Segment) -> int:
        later = [other.start for other in self._log.segments if other.start > segment.start]
        return min(later, default=segment.start)

    def _has_topics(self, segment: Segment) -> bool:
        return any(next(iter(segment.queues_of(topic_id)), None) is not None for topic_id in self._topics)
