"""The retention of topics that have rules of their own: from which offset on their messages are shown.

What is shown no more is deleted when its segment is rewritten or removed.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator

from minimq_broker.core.retention import NOTHING_NEEDED, RetentionRules
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.lmdb_file import DAMAGE
from minimq_broker.store.segment import Segment
from minimq_broker.store.topic_sizes import TopicSizes


class TopicRetention:
    """Finds the first shown offsets of one log. Used by one thread at a time.

    Args:
        log: the log.
        segment_bytes: size at which its segments are sealed.

    Attributes:
        rules: those of the topics that have some, by their ids, as of the last look.
        gone_before: log positions before which nothing of a topic is shown, roughly, by its id.
    """

    def __init__(self, log: CommitLog, segment_bytes: int) -> None:
        self.rules: dict[int, RetentionRules] = {}
        self.gone_before: dict[int, int] = {}
        self._log = log
        self._segment_bytes = segment_bytes
        self._sizes: dict[int, TopicSizes] = {}

        #: Log position at which the floor of a queue was found last: nothing before it is shown.
        self._went_on_at: dict[tuple[QueueKey, RetentionRules], int] = {}

    def look(self, state: State, now_ms: int) -> None:
        """Show from now on what the rules of the topics keep."""
        topics = {topic.topic_id: topic for topic in state.topics.copy().values() if any(_numbers(topic.retention))}
        self.rules = {topic_id: topic.retention for topic_id, topic in topics.items()}
        self._forget_sizes()
        self._went_on_at = {
            (queue, rules): at
            for (queue, rules), at in self._went_on_at.items()
            if self.rules.get(queue.topic_id) == rules
        }
        floors: dict[QueueKey, int] = {}
        self.gone_before = {}
        for topic_id, topic in topics.items():
            end = NOTHING_NEEDED
            least = self._cut_by_size(topic_id, topic.retention.max_bytes)
            for number in range(topic.queues):
                queue = QueueKey(topic_id, number)
                found = self._floor(queue, topic.retention, now_ms, least, state.end(queue).offset)
                if found is not None:
                    floors[queue], at = found
                    end = min(end, at)
            self.gone_before[topic_id] = end
        self._log.show_from(floors)

    def sizes(self, segment: Segment) -> TopicSizes:
        """Return the sizes of topics in a segment."""
        found = self._sizes.get(segment.start)
        if found is None or found.segment is not segment:
            found = self._sizes[segment.start] = TopicSizes(segment, self._segment_bytes)
        return found

    def _forget_sizes(self) -> None:
        there = {segment.start: segment for segment in self._log.segments}
        self._sizes = {start: sizes for start, sizes in self._sizes.items() if there.get(start) is sizes.segment}

    def _floor(
        self, queue: QueueKey, rules: RetentionRules, now_ms: int, least: int, end: int
    ) -> tuple[int, int] | None:
        """Return the first offset of a queue that is shown, and its log position; None if all is."""
        offset = position = 0
        went_on_at = self._went_on_at.get((queue, rules), 0)
        segments = self._log.segments
        starts = [segment.start for segment in segments]
        for segment in segments[max(bisect_right(starts, went_on_at) - 1, 0) :]:
            try:
                last = segment.row_before(queue, 1 << 63)
                if last is None:
                    continue
                offset, position = last.last_offset + 1, NOTHING_NEEDED
                if last.position < least or rules.is_over_age(last.stored_ms, now_ms):
                    continue
                oldest_ms = now_ms - rules.max_age_ms + 1 if rules.max_age_ms else 0
                first = max(segment.offset_at(queue, oldest_ms) or 0, segment.offset_from(queue, least) or 0)
                row = segment.row_at(queue, first)
            except DAMAGE:  # who reads it is told
                return None
            if row is None:
                continue
            self._went_on_at[queue, rules] = row.position
            return row.base_offset, row.position
        return (min(offset, end), position) if offset else None

    def _cut_by_size(self, topic_id: int, max_bytes: int) -> int:
        """Return the log position from which on the newest messages of a topic have about so many bytes."""
        kept_from = 0
        for start, size in self._slices(topic_id) if max_bytes else ():
            if max_bytes <= 0:
                return kept_from
            max_bytes -= size
            kept_from = start
        return 0

    def _slices(self, topic_id: int) -> Iterator[tuple[int, int]]:
        for segment in reversed(self._log.segments):
            try:
                yield from self.sizes(segment).slices(topic_id)
            except DAMAGE:  # it counts for nothing
                continue


def _numbers(rules: RetentionRules) -> tuple[int, int]:
    return rules.max_age_ms, rules.max_bytes
