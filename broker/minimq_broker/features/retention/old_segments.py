"""Finds out how much of old segments is still needed, and which messages a rewriting keeps."""

from __future__ import annotations

import logging
import struct
from collections.abc import Sequence

import lmdb

from minimq_broker.commit.store import Store
from minimq_broker.features.feature import Pins
from minimq_broker.features.retention.retention import NO_REST, LiveData, Reason, RetentionOptions, SegmentInfo
from minimq_broker.features.retention.topic_retention import TopicRetention
from minimq_broker.log.entry import EntryHeader
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.rewriting import Choice
from minimq_broker.log.segment import Segment
from minimq_broker.state.queue_ends import NOTHING_NEEDED
from minimq_broker.state.state import SavedTopics
from minimq_common.errors import StoreError

log = logging.getLogger(__name__)


class OldSegments:
    """The old segments of one store, by its saved state. Used by one thread at a time."""

    def __init__(self, store: Store, options: RetentionOptions) -> None:
        self.store, self.log = store, store.log
        self.topics = TopicRetention(store.log, store.options.segment_bytes, options)
        self.pins: Sequence[Pins] = ()
        self._saved = SavedTopics()
        #: Compacted topics and dead letters: only their own rules delete their messages.
        self._lasting: frozenset[int] = frozenset()
        #: Topics that the age of the broker does not delete: these, and those with an age of their own.
        self._outliving: frozenset[int] = frozenset()
        #: Topics whose own rules are saved, so that messages which they hide may be deleted.
        self._settled: frozenset[int] = frozenset()
        #: Segments whose age could not be read, to log each once.
        self._unreadable: set[int] = set()

    @property
    def known_to(self) -> int:
        """Log position up to which it is known what is needed."""
        return self._saved.position

    def look(self, now_ms: int) -> None:
        """Determine what is needed at a time (ms since 1970), and hide expired messages of topics."""
        state = self.store.state
        self.topics.look(state, now_ms)
        saved = self._saved = state.saved_topics
        self.pins = self.store.pins()  # not earlier than the topics: they are of this state or of a later one
        rules = {topic_id: self.topics.rules_of(topic) for topic_id, topic in saved.topics.items()}
        self._lasting = frozenset(topic_id for topic_id, topic in saved.topics.items() if topic.lasting)
        self._outliving = self._lasting | {topic_id for topic_id, own in rules.items() if own.max_age_ms}
        self._settled = frozenset(topic_id for topic_id, own in self.topics.rules.items() if own == rules.get(topic_id))

    def info(self, segment: Segment, end: int) -> SegmentInfo:
        """Describe a segment that ends at a log position. Raises `OSError`."""
        about = segment.path.stat()
        try:
            newest = segment.newest_ms()
        except (lmdb.Error, struct.error, StoreError) as error:  # a damaged segment must not block later ones forever
            newest = about.st_mtime_ns // 1_000_000
            if segment.start not in self._unreadable:
                self._unreadable.add(segment.start)
                log.error("retention: age unreadable, uses file time segment=%d error=%s", segment.start, error)
        rest = self.rest(segment) if segment.sealed else NO_REST
        return SegmentInfo(segment.start, end, about.st_size, newest, rest)

    def rest(self, segment: Segment) -> LiveData:
        """Return how much of a sealed segment is needed."""
        damage = self.store.log.damage
        if segment.start not in damage:
            try:
                return self._rest(segment)
            except DAMAGE as error:
                self.store.log.report_damage(segment.start, str(error))
        # A damaged segment stays as it is while there are lasting topics.
        return LiveData(0, segment.used_bytes, segment.used_bytes, True) if self._lasting else NO_REST

    def _rest(self, segment: Segment) -> LiveData:
        lasting = sum(pins.bytes_in(segment) for pins in self.pins)
        aged = garbage = 0
        sizes, topics = self.topics.sizes, segment.topics()
        for topic_id in topics - self._saved.topics.keys():
            garbage += sizes.size_of(segment, topic_id)
        for topic_id in topics & (self._outliving | self._settled):
            before = self.topics.gone_before.get(topic_id, 0) if topic_id in self._settled else 0
            gone = sizes.size_of(segment, topic_id, before)
            garbage += gone
            if topic_id in self._outliving and self._has_shown(segment, topic_id):
                left = max(sizes.size_of(segment, topic_id) - gone, 1)
                if topic_id in self._lasting:
                    lasting += left
                else:
                    aged += left
        return LiveData(garbage, aged + lasting, lasting, bool(segment.rewritten_to) and topics <= self._outliving)

    def _has_shown(self, segment: Segment, topic_id: int) -> bool:
        floors = self.store.log.floors if topic_id in self._settled else {}
        lasts = {queue: segment.row_before(queue, NOTHING_NEEDED) for queue in segment.queues_of(topic_id)}
        return any(row is not None and row.last_offset >= floors.get(queue, 0) for queue, row in lasts.items())

    def choice(self, reason: Reason | None) -> Choice:
        """Return the `Choice` for segments that are deleted for a reason; None: remove only garbage.

        Deletion by age keeps the topics that outlive it. Deletion by size or disk keeps only lasting ones: compacted
        topics and dead letters.
        """
        floors, settled = self.store.log.floors, self._settled
        topics = {None: self._saved.topics.keys(), Reason.AGE: self._outliving}.get(reason, self._lasting)

        def choose(position: int, header: EntryHeader, entry: memoryview) -> memoryview | None:
            queue = header.queue
            if queue.topic_id not in topics:
                return None
            is_hidden = queue.topic_id in settled and header.base_offset < floors.get(queue, 0)
            return None if is_hidden else entry

        return choose
