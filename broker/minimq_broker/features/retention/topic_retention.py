"""Hides expired messages of each topic, by its own retention rules and the maximum age of the broker."""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from minimq_broker.features.retention import NAME
from minimq_broker.features.retention.retention import RetentionOptions, RetentionRules
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.topic_sizes import TopicSizes
from minimq_broker.state.facts import Topic
from minimq_broker.state.queue_ends import NOTHING_NEEDED, QueueKey
from minimq_broker.state.state import State
from minimq_common.names import DEAD_LETTER_PREFIX
from minimq_common.record_limit import ALWAYS_WRITTEN

log = logging.getLogger(__name__)


def is_dead_letters(topic: Topic) -> bool:
    return topic.name.startswith(DEAD_LETTER_PREFIX)


def own_rules(topic: Topic) -> RetentionRules:
    """Return the topic's own rules; 0 where it has none."""
    return RetentionRules(**topic.settings.get(NAME, {}))


def with_rules(topic: Topic, age_ms: int, size: int) -> Topic:
    """Return a topic with rules of its own; 0: those of the broker."""
    settings = {name: each for name, each in topic.settings.items() if name != NAME}
    if age_ms or size:
        settings[NAME] = {"max_age_ms": age_ms, "max_bytes": size}
    return msgspec.structs.replace(topic, settings=settings)


class _Floor(NamedTuple):
    """The first visible offset of a queue."""

    #: 0 if all messages are visible.
    offset: int
    #: Its log position; `NOTHING_NEEDED` if no message is visible.
    position: int
    #: When it may expire.
    until_ms: int
    #: Log position before which the next search finds nothing visible.
    seen: int


class TopicRetention:
    """Finds the first visible offsets of one log. Used by one thread at a time."""

    def __init__(self, log: CommitLog, segment_bytes: int, options: RetentionOptions) -> None:
        #: Number of dead letters deleted since the start, and bytes of the remaining ones.
        self.dead_letters_deleted = self.dead_letter_bytes = 0
        self.rules: dict[int, RetentionRules] = {}
        self.gone_before: dict[int, int] = {}
        self._log = log
        self._max_age_ms, self._dead_letters = options.rules.max_age_ms, options.dead_letters
        self.sizes = TopicSizes(segment_bytes)
        self._found: dict[tuple[QueueKey, RetentionRules], _Floor] = {}
        self._state: State | None = None
        #: Offsets up to which deleted dead letters were logged; None until the first `look`, which logs nothing.
        self._told: dict[QueueKey, int] | None = None

    def look(self, state: State, now_ms: int) -> None:
        """Update the visible offsets to the rules of the topics and the time."""
        topics = {topic.topic_id: topic for topic in state.topics.copy().values() if self.rules_of(topic)}
        self.rules = {topic_id: self.rules_of(topic) for topic_id, topic in topics.items()}
        if self._state is not state:  # after a truncation, offsets may belong to other messages
            self._state, self._found, self._told = state, {}, None
        former, self._found = self._found, {}
        floors: dict[QueueKey, int] = {}
        self.gone_before = {}
        for topic in (*topics.values(), *self._aged(state, now_ms)):
            end, rules = NOTHING_NEEDED, self.rules_of(topic)
            if not rules.max_age_ms and not topic.lasting:
                rules = RetentionRules(self._max_age_ms, rules.max_bytes)
            least = self._cut_by_size(topic.topic_id, rules.max_bytes)
            for queue in topic.queue_keys:
                found = former.get((queue, rules))
                if found is None or least or now_ms >= found.until_ms:
                    found = self._floor(queue, rules, now_ms, least, found)
                if found is None:
                    continue
                self._found[queue, rules] = found
                end = min(end, found.position)
                if found.offset:
                    floors[queue] = min(found.offset, state.end(queue).offset)
            if topic.topic_id in self.rules:
                self.gone_before[topic.topic_id] = end
        self._log.show_from(floors)
        self._log_deleted(topics)
        self.dead_letter_bytes = self._kept_bytes(state)

    def rules_of(self, topic: Topic) -> RetentionRules:
        """Return the rules of a topic besides those of the broker."""
        own = own_rules(topic)
        return own if own or not is_dead_letters(topic) else self._dead_letters

    def _log_deleted(self, topics: Mapping[int, Topic]) -> None:
        told = self._told
        self._told = {queue: end for queue, end in (told or {}).items() if queue.topic_id in topics}
        for (queue, _), floor in self._found.items():
            topic = topics.get(queue.topic_id)
            if topic is None or not is_dead_letters(topic):
                continue
            self._told[queue] = floor.offset
            count = floor.offset - told.get(queue, 0) if told is not None else 0
            if count > 0:
                self.dead_letters_deleted += count
                group = topic.name.removeprefix(DEAD_LETTER_PREFIX)
                text = "retention: dead letters deleted group=%s queue=%d count=%d"
                log.warning(text, group, queue.queue_id, count, extra=ALWAYS_WRITTEN)

    def _kept_bytes(self, state: State) -> int:
        kept = {topic.topic_id for topic in state.topics.copy().values() if is_dead_letters(topic)}
        found = 0
        for segment in self._log.segments if kept else ():
            try:
                there = kept & segment.topics() if segment.sealed else kept
                found += sum(self.sizes.size_of(segment, topic_id) for topic_id in there)
            except DAMAGE:  # readers report it
                continue
        return found

    def _aged(self, state: State, now_ms: int) -> Iterator[Topic]:
        rules, ids = RetentionRules(self._max_age_ms), set[int]()
        for segment in self._log.segments if self._max_age_ms else ():
            try:
                ids |= segment.topics()
                newest_ms = segment.newest_ms()
            except DAMAGE:
                continue
            if newest_ms is not None and not rules.is_over_age(newest_ms, now_ms):
                break  # later segments are younger
        for topic in state.topics.copy().values():
            if topic.topic_id in ids - self.rules.keys() and not topic.lasting and not topic.name.startswith("%"):
                yield topic

    def _floor(
        self, queue: QueueKey, rules: RetentionRules, now_ms: int, least: int, former: _Floor | None
    ) -> _Floor | None:
        oldest_ms = now_ms - rules.max_age_ms + 1 if rules.max_age_ms else 0
        until_ms = now_ms + rules.max_age_ms
        # Start from the former floor, even if the messages after it were deleted: messages before it stay hidden.
        floor = _Floor(0, NOTHING_NEEDED, until_ms, 0) if former is None else former._replace(until_ms=until_ms)
        segments = self._log.segments
        starts = [segment.start for segment in segments]
        for segment in segments[max(bisect_right(starts, floor.seen) - 1, 0) :]:
            try:
                last = segment.row_before(queue, 1 << 63)
                if last is None:
                    continue
                if last.position < least or rules.is_over_age(last.stored_ms, now_ms):
                    floor = _Floor(last.last_offset + 1, NOTHING_NEEDED, until_ms, last.position)
                    continue
                first = segment.first_offset_of(queue, lambda row: row.stored_ms >= oldest_ms and row.position >= least)
                row = segment.row_at(queue, first or 0)
            except DAMAGE:
                return None
            if row is not None:
                return _Floor(row.base_offset, row.position, row.stored_ms + rules.max_age_ms, row.position)
        return floor

    def _cut_by_size(self, topic_id: int, max_bytes: int) -> int:
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
                yield from self.sizes.slices(segment, topic_id)
            except DAMAGE:  # counts as empty
                continue
