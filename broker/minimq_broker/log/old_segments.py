"""Finds out which entries of old segments are still needed, so that segments can be removed or rewritten."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from minimq_broker.features.delayed.table import NO_KEY
from minimq_broker.features.retention.retention import NO_REST, NOTHING_NEEDED, LiveData, Reason, RetentionRules
from minimq_broker.features.retention.topic_retention import TopicRetention, is_kept
from minimq_broker.log.entry import IN_QUEUE, EntryHeader, EntryKind
from minimq_broker.log.rewriting import Choice, Rewriting
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import HeldKey
from minimq_broker.state.state import QueueKey

if TYPE_CHECKING:
    from minimq_broker.commit.message_store import MessageStore


@dataclass(frozen=True, slots=True)
class _Known:
    """An extract of the state at a log position. Once the state is saved, it stays valid until a truncation."""

    position: int = -1
    #: `CommitLog.truncations` at that time.
    truncations: int = 0
    topics: frozenset[int] = frozenset()
    #: Compacted topics and dead letters: only their own rules delete their messages.
    lasting: frozenset[int] = frozenset()
    rules: Mapping[int, RetentionRules] = field(default_factory=dict)
    staged: frozenset[int] = frozenset()

    def outlives(self, topic_id: int) -> bool:
        return topic_id in self.lasting or (topic_id in self.rules and self.rules[topic_id].max_age_ms > 0)


class OldSegments:
    """Removes and replaces old segments of one store. Used by one thread at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store, self._log, options = store, store.log, store.options
        self.topics = TopicRetention(
            self._log, options.segment_bytes, options.retention.max_age_ms, options.dead_letters
        )
        self.mark: HeldKey = NO_KEY
        self._next = self._known = _Known()

    @property
    def known_to(self) -> int:
        """Log position up to which it is known what is needed; -1 if nothing is known yet."""
        return self._known.position if self._known.truncations == self._log.truncations else -1

    @property
    def rewritable_to(self) -> int:
        """Log position up to which segments may be rewritten: it is known which of their entries are needed."""
        store = self._store
        return min(store.saved_position, store.state.transactions.needed_from, self.known_to)

    def remove_first(self, needed_from: int) -> bool:
        """Call `CommitLog.remove_first`, but also keep what recovery, transactions or delayed batches need."""
        with self._log.kept:
            return self._log.remove_first(min(needed_from, self._store.needed_from))

    def put_in_place(self, rewriting: Rewriting, needed_from: int) -> bool:
        """Put a rewritten segment in place; return False if the former ones are still needed or have changed."""
        with self._log.kept:
            return rewriting.end <= min(needed_from, self.rewritable_to) and rewriting.put_in_place()

    def look(self, now_ms: int) -> None:
        """Determine what is needed at a time (ms since 1970), and hide expired messages of topics."""
        state, saved_position = self._store.state, self._store.saved_position
        self.topics.look(state, now_ms)
        self.mark = state.tables["delayed"].saved_mark
        if self._known.truncations != self._log.truncations:
            self._next = self._known = _Known(truncations=self._log.truncations)
        if self._known.position < self._next.position <= saved_position:
            self._known = self._next
        if self._next is not self._known:
            return
        position = state.position  # first: what is read below may already be newer
        topics = [*state.topics.copy().values()]
        self._next = _Known(
            position,
            self._log.truncations,
            frozenset(topic.topic_id for topic in topics),
            frozenset(topic.topic_id for topic in topics if topic.compaction or is_kept(topic.name)),
            self.topics.rules,
            state.transactions.staged_positions(),
        )
        if position <= saved_position:
            self._known = self._next

    def rest(self, segment: Segment, end: int) -> LiveData:
        """Return how much of a sealed segment, which ends at log position `end`, is needed. Raises one of `DAMAGE`."""
        known, used = self._known, segment.used_bytes
        lasting = sum(segment.start <= position < end for position in known.staged)
        if segment.due.next_key(self.mark) is not None:
            lasting += used // 2
        aged = garbage = 0
        sizes = self.topics.sizes(segment)
        is_rest = bool(segment.rewritten_to) and all(known.outlives(topic_id) for topic_id in sizes.topics)
        for topic_id in sizes.topics - known.topics:
            garbage += sizes.size_of(topic_id)
        for topic_id in sizes.topics & (known.lasting | known.rules.keys()):
            gone = sizes.size_of(topic_id, self._gone_before(topic_id))
            garbage += gone
            if known.outlives(topic_id) and self._has_shown(segment, topic_id):
                left = max(sizes.size_of(topic_id) - gone, 1)
                if topic_id in known.lasting:
                    lasting += left
                else:
                    aged += left
        return LiveData(garbage, aged + lasting, lasting, is_rest)

    def rest_of_damaged(self, segment: Segment) -> LiveData:
        """Return the rest of a damaged segment: it stays as it is while there are lasting topics, else nothing."""
        return LiveData(0, segment.used_bytes, segment.used_bytes, True) if self._known.lasting else NO_REST

    def _has_shown(self, segment: Segment, topic_id: int) -> bool:
        floors = self._floors(topic_id)
        lasts = {queue: segment.row_before(queue, NOTHING_NEEDED) for queue in segment.queues_of(topic_id)}
        return any(row is not None and row.last_offset >= floors.get(queue, 0) for queue, row in lasts.items())

    def _gone_before(self, topic_id: int) -> int:
        return self.topics.gone_before.get(topic_id, 0) if self._is_settled(topic_id) else 0

    def _floors(self, topic_id: int) -> Mapping[QueueKey, int]:
        return self._log.floors if self._is_settled(topic_id) else {}

    def _is_settled(self, topic_id: int) -> bool:
        return self._known.rules.get(topic_id) == self.topics.rules.get(topic_id)

    def choice(self, reason: Reason | None) -> Choice:
        """Return the `Choice` for segments that are deleted for a reason; None: remove only garbage.

        Deletion by age keeps the topics that outlive it. Deletion by size or disk keeps only lasting ones: compacted
        topics and dead letters.
        """
        known = self._known
        floors = {topic_id: self._floors(topic_id) for topic_id in known.rules}

        def is_shown(header: EntryHeader) -> bool:
            topic_id = header.queue.topic_id
            if topic_id not in known.topics:
                return False
            if reason is Reason.AGE and not known.outlives(topic_id):
                return False
            if reason not in (None, Reason.AGE) and topic_id not in known.lasting:
                return False
            return topic_id not in floors or header.base_offset >= floors[topic_id].get(header.queue, 0)

        def choose(position: int, header: EntryHeader, entry: memoryview) -> memoryview | None:
            if header.kind == EntryKind.STAGED:
                is_needed = position in known.staged
            else:
                is_needed = header.kind in IN_QUEUE and is_shown(header)
            return entry if is_needed else None

        return choose
