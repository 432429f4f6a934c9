"""A round of compaction, in small steps: first the newest offsets of keys are found, then segments are rewritten.

It goes through the log from what was compacted before to where its memory for keys is full, then rewrites all segments
up to there, the oldest first. So a tombstone outlives all that it deletes, whatever interrupts the round.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import closing
from enum import Enum

from minimq_broker.core.facts import TopicCompaction
from minimq_broker.core.held.delays import DueKey
from minimq_broker.core.upkeep.compaction_record import CompactionRecord
from minimq_broker.core.upkeep.newest_keys import NewestKeys, key_names
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.entry import IN_QUEUE, payload_of, read_header
from minimq_broker.store.segment import Segment
from minimq_broker.store.upkeep.compaction_choice import CompactionChoice
from minimq_broker.store.upkeep.rewriting import Rewriting
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CorruptBatch, InvalidArgument

#: Entries of a rewriting that are taken over in one step, and their bytes.
_STEP_ENTRIES = 32
_STEP_BYTES = 256 << 10


class _Phase(Enum):
    MAPPING = "mapping"
    CHOOSING = "choosing"
    LOOKING = "looking"
    REWRITING = "rewriting"
    OVER = "over"


class CompactionRound:
    """One round. Used by one thread at a time; the log may change between its steps."""

    def __init__(
        self,
        log: CommitLog,
        topics: Mapping[int, TopicCompaction],
        record: CompactionRecord,
        *,
        limit: int,
        now_ms: int,
        most_keys: int,
        segment_bytes: int,
        mark: DueKey,
    ) -> None:
        self._mark = mark
        self._log, self._topics, self._record = log, topics, record
        self._now_ms, self._segment_bytes = now_ms, segment_bytes
        self._newest = NewestKeys(most_keys)
        self.messages = self.removed = self.rewritten = 0
        self.is_given_up = False
        self._tombstones = 0
        self._held: set[tuple[int, int]] = set()
        self._phase = _Phase.MAPPING
        #: Segments end where the next one starts; the last one is written to.
        starts = [segment.start for segment in log.segments if segment.start <= limit]
        self._end = starts[-1] if starts else 0
        self._position = record.position
        self._group: list[Segment] = []
        self._choice: CompactionChoice | None = None
        self._rewriting: Rewriting | None = None

    @property
    def is_over(self) -> bool:
        """True if nothing is left to do."""
        return self._phase is _Phase.OVER

    @property
    def has_gone_on(self) -> bool:
        """True if more of the log is compacted than before."""
        return self._end > self._record.position

    def done(self) -> CompactionRecord:
        """Return the record of the rounds with this one, once it is over."""
        return self._record.after(self._end, self._now_ms, self._tombstones, sorted(self._held))

    def step(self, budget_s: float) -> None:
        """Do some work, for about that time. Raises what reading and writing segments raises."""
        until = time.perf_counter() + budget_s
        while not self.is_over:
            match self._phase:
                case _Phase.MAPPING:
                    self._map(until)
                case _Phase.CHOOSING:
                    self._choose()
                case _Phase.LOOKING:
                    self._look(until)
                case _Phase.REWRITING:
                    self._rewrite()
            if time.perf_counter() >= until:
                return

    def give_up(self) -> None:
        """End it; what was rewritten stays. Idempotent."""
        self.is_given_up = not self.is_over
        self._phase = _Phase.OVER
        if self._rewriting is not None:
            self._rewriting.give_up()

    def _map(self, until: float) -> None:
        segment = self._segment_at(self._position)
        if segment is None or self._position >= self._end:
            self._map_is_complete(self._end)
            return
        if not self._has_topics(segment):
            self._position = self._end_of(segment)
            return
        with closing(segment.entries(self._position)) as entries:
            for position, entry in entries:
                header = read_header(entry, position)
                rules = self._topics.get(header.queue.topic_id)
                if rules is not None and header.kind in IN_QUEUE:
                    if self._newest.is_full or header.stored_ms + rules.min_lag_ms > self._now_ms:
                        self._map_is_complete(position)
                        return
                    try:
                        records = RecordBatch(bytes(payload_of(entry, header)))
                        offsets = [header.base_offset + number for number in records.numbers()]
                        self._newest.add(header.queue, key_names(records), offsets)
                    except (CorruptBatch, InvalidArgument):
                        pass  # nobody can read it
                self._position = position + 1
                if time.perf_counter() >= until:
                    return
        self._position = self._end_of(segment)

    def _map_is_complete(self, end: int) -> None:
        self._end = end
        self._position = 0
        self._phase = _Phase.CHOOSING

    def _choose(self) -> None:
        self._group, size = [], 0
        for segment in self._log.segments[:-1]:
            if segment.start < self._position:
                continue
            is_full = self._group and size + segment.used_bytes > self._segment_bytes
            if segment.start >= self._end or is_full:
                break
            self._group.append(segment)
            size += segment.used_bytes
        if not self._group:
            self._phase = _Phase.OVER
            return
        self._position = self._end_of(self._group[-1])
        if not any(map(self._has_topics, self._group)):
            return
        self._choice = self._new_choice()
        self._looked_to = self._group[0].start
        is_known = self._position <= self._record.position
        self._phase = _Phase.LOOKING
        if not is_known:
            self._begin()

    def _new_choice(self) -> CompactionChoice:
        return CompactionChoice(self._topics, self._newest, self._end, self._record, self._now_ms)

    def _look(self, until: float) -> None:
        assert self._choice is not None
        for segment in self._group:
            if self._end_of(segment) <= self._looked_to:
                continue
            with closing(segment.entries(self._looked_to)) as entries:
                for position, entry in entries:
                    self._looked_to = position + 1
                    header = read_header(entry, position)
                    if self._choice.has_work(position, header, entry):
                        self._begin()
                        return
                    if time.perf_counter() >= until:
                        return
            self._looked_to = self._end_of(segment)
        self._tombstones += self._record.tombstones and 1
        self._phase = _Phase.CHOOSING

    def _begin(self) -> None:
        self._choice = choice = self._new_choice()
        self._rewriting = Rewriting(self._log, self._group, self._position, choice, self._mark, choice.rest)
        self._phase = _Phase.REWRITING

    def _rewrite(self) -> None:
        assert self._rewriting is not None
        assert self._choice is not None
        if self._rewriting.step(_STEP_BYTES, _STEP_ENTRIES):
            return
        is_there = self._rewriting.put_in_place()
        self._rewriting.give_up()
        self._rewriting = None
        if not is_there:  # one of them was removed or repaired meanwhile: the next round begins anew
            self.give_up()
            return
        self.rewritten += len(self._group)
        self.messages += self._choice.messages
        self.removed += self._choice.removed
        self._tombstones += self._choice.tombstones
        self._held.update(map(tuple, self._choice.held))  # type: ignore[arg-type]
        self._phase = _Phase.CHOOSING

    def _segment_at(self, position: int) -> Segment | None:
        for segment in self._log.segments[:-1]:
            if self._end_of(segment) > position:
                return segment
        return None

    def _end_of(self, segment: Segment) -> int:
        later = [other.start for other in self._log.segments if other.start > segment.start]
        return min(later, default=segment.start)

    def _has_topics(self, segment: Segment) -> bool:
        return any(next(iter(segment.queues_of(topic_id)), None) is not None for topic_id in self._topics)
