"""The compactor: runs rounds of compaction in the background, in small steps with long pauses."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Generator
from functools import partial
from itertools import pairwise

from minimq_broker.commit.off_loop import in_steps
from minimq_broker.commit.store import Store
from minimq_broker.features.compaction.compaction_file import load_record, save_record
from minimq_broker.features.compaction.compaction_record import TopicBytes, needs_compaction
from minimq_broker.features.compaction.compaction_round import CompactionRound
from minimq_broker.features.compaction.topic_compaction import TopicCompaction, compaction_of
from minimq_broker.log.clock import now_ms
from minimq_broker.log.topic_sizes import TopicSizes
from minimq_common.record_limit import ALWAYS_WRITTEN
from minimq_common.serving.periodic import PeriodicTask

log = logging.getLogger(__name__)

#: Minimum pause between two steps.
_PAUSE_S = 0.002
#: Share of the time of one processor: what serves clients must not wait for compaction.
_SHARE = 0.2
#: Keys of a round. They take 128 MiB at about 160 bytes each; further keys need further rounds.
_MAX_KEYS = (128 << 20) // 160


class Compactor(PeriodicTask):
    """Compacts topics periodically. Everything that touches the disk runs on another thread."""

    def __init__(
        self, store: Store, lowest_needed: Callable[[], int], clock_ms: Callable[[], int] = now_ms, *, interval_s: float
    ) -> None:
        self._store = store
        #: Messages that were removed since the start of the broker.
        self.removed = 0
        super().__init__("compaction", self._compact, interval_s, log)
        self._lowest_needed, self._clock_ms = lowest_needed, clock_ms
        self._sizes = TopicSizes()

    async def _compact(self) -> None:
        while await in_steps(self._store, partial(self._round, self._lowest_needed()), self._pause):
            pass

    async def _pause(self, spent_s: float) -> None:
        await asyncio.sleep(max(_PAUSE_S, spent_s * (1 / _SHARE - 1)))

    def _round(self, needed_from: int, store: Store) -> Generator[None, None, bool]:
        begun = self._begin(needed_from, store)
        if begun is None or not (yield from begun.run()):
            return False
        self._finish(store, begun)
        return begun.has_advanced

    def _begin(self, needed_from: int, store: Store) -> CompactionRound | None:
        state = store.state
        found = {topic.topic_id: compaction_of(topic) for topic in state.topics.copy().values()}
        topics = {topic_id: rules for topic_id, rules in found.items() if rules is not None}
        if not topics:
            return None
        record, now = load_record(store.log.path), self._clock_ms()
        limit = min(store.saved_position, store.confirmed, needed_from)
        sizes = [self._bytes(store, topic_id, rules, record.position, limit) for topic_id, rules in topics.items()]
        if not needs_compaction(record, sizes, now):
            return None
        return CompactionRound(
            store.log,
            topics,
            record,
            limit=limit,
            lowest_needed=self._lowest_needed,
            now_ms=now,
            most_keys=_MAX_KEYS,
            segment_bytes=store.options.segment_bytes,
            pins=store.pins,
        )

    def _bytes(self, store: Store, topic_id: int, rules: TopicCompaction, compacted_to: int, limit: int) -> TopicBytes:
        clean = dirty = 0
        for segment, following in pairwise(store.log.segments):
            size = self._sizes.size_of(segment, topic_id)
            if following.start <= compacted_to:
                clean += size
            elif following.start <= limit:
                dirty += size
        return TopicBytes(rules, clean, dirty)

    def _finish(self, store: Store, done: CompactionRound) -> None:
        save_record(store.log.path, done.done())
        self.removed += done.removed
        log.info(
            "compaction: done position=%d segments=%d messages=%d removed=%d",
            done.done().position,
            done.rewritten,
            done.messages,
            done.removed,
            extra=ALWAYS_WRITTEN,
        )
