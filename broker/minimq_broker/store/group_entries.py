"""The entries of one transaction of the writer as they come together, with their rows and effects."""

from __future__ import annotations

from collections.abc import Set

from minimq_broker.core.delays import DueKey
from minimq_broker.core.facts import Fact
from minimq_broker.core.producers import Place
from minimq_broker.core.state import Effect, QueueEnd, QueueKey, State
from minimq_broker.store.due_rows import AnyDueRow, due_rows_of
from minimq_broker.store.entry import EntryKind, batch_entry, due_entry, fact_entry
from minimq_broker.store.rows import Row
from minimq_common.batch import Header


class GroupEntries:
    """The entries of one transaction. Offsets are assigned here, after those in the state."""

    def __init__(self, state: State, end: int, now_ms: int) -> None:
        self.state = state
        self.now_ms = now_ms
        self._start = self.end = end
        self.ends: dict[QueueKey, QueueEnd] = {}
        self.messages = 0
        self.entries: list[tuple[int, bytes]] = []
        self.rows: list[tuple[QueueKey, Row]] = []
        self.due: list[AnyDueRow] = []
        self.effects: list[tuple[Effect, int, int]] = []

    @property
    def size(self) -> int:
        """Bytes of the entries."""
        return self.end - self._start

    @property
    def grown(self) -> Set[QueueKey]:
        """The queues that get batches."""
        return self.ends.keys()

    def put(
        self,
        queue: QueueKey,
        data: bytes | memoryview,
        header: Header,
        kind: EntryKind = EntryKind.BATCH,
        key: DueKey | None = None,
    ) -> Place:
        """Write a batch where its queue ends; with the key of one that was delayed."""
        end = self.ends.get(queue) or self.state.end(queue)
        stored_ms = max(self.now_ms, end.stored_ms)  # a clock that was set back must not disorder the queue
        if key is None:
            entry = batch_entry(queue, end.offset, stored_ms, data, kind)
        else:
            entry = due_entry(queue, end.offset, stored_ms, key, data)
        after = QueueEnd(end.offset + header.count, stored_ms)
        row = Row(
            after.offset - 1,
            self.end,
            len(entry),
            header.count,
            stored_ms,
            header.born_first_ms,
            header.born_last_ms,
            header.tag_hashes,
        )
        self.append(entry)
        self.rows.append((queue, row))
        self.messages += header.count
        self.ends[queue] = after
        return Place(*queue, end.offset, stored_ms)

    def add(self, fact: Fact) -> None:
        """Write a fact."""
        self.append(fact_entry(fact, self.now_ms))
        self.do(fact, self.now_ms)

    def append(self, entry: bytes) -> None:
        """Write an entry, whose effect follows."""
        self.entries.append((self.end, entry))
        self.end += len(entry)

    def do(self, effect: Effect, at_ms: int) -> None:
        """Record the effect of the last entry."""
        self.effects.append((effect, self.end, at_ms))
        position, entry = self.entries[-1]
        self.due += due_rows_of(effect, position, len(entry))
