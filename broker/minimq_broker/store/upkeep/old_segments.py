"""The old segments of a store: removed when nothing of them is needed, rewritten when some of it is."""

from __future__ import annotations

from typing import TYPE_CHECKING

from minimq_broker.store.upkeep.needed_entries import NeededEntries
from minimq_broker.store.upkeep.topic_retention import TopicRetention

if TYPE_CHECKING:
    from minimq_broker.store.message_store import MessageStore
    from minimq_broker.store.upkeep.rewriting import Rewriting


class OldSegments:
    """Removes and replaces the old segments of one store. Used by one thread at a time."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._log = store.log
        options = store.options
        self.topics = TopicRetention(
            self._log, options.segment_bytes, options.retention.max_age_ms, options.dead_letters
        )
        self.needed = NeededEntries(self._log, self.topics)

    @property
    def rewritable_to(self) -> int:
        """Log position up to which segments may be rewritten: what is needed of them is known, and stays."""
        store = self._store
        return min(store.saved_position, store.state.transactions.needed_from, self.needed.known_to)

    def look(self, now_ms: int) -> None:
        """Find out what is needed at a time, in ms since 1970, and show no more of topics than that."""
        state = self._store.state
        self.topics.look(state, now_ms)
        self.needed.look(state, self._store.saved_position)

    def remove_first(self, needed_from: int) -> bool:
        """Remove the oldest segment as `CommitLog.remove_first` does, unless recovery or a transaction needs it."""
        with self._log.kept():
            return self._log.remove_first(min(needed_from, self._store.needed_from))

    def put_in_place(self, rewriting: Rewriting, needed_from: int) -> bool:
        """Put a rewritten segment in place, unless a slave needs the former ones; return whether that was done."""
        with self._log.kept():
            return rewriting.end <= min(needed_from, self.rewritable_to) and rewriting.put_in_place()
