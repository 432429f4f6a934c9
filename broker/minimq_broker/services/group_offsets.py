"""Offsets that groups commit: recorded in the log by a master, kept beside it by a slave while there is no master."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from minimq_broker.core.facts import CommittedOffset, GroupStarted, OffsetsCommitted
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.store_handle import uncancellable
from minimq_broker.services.writes import Writes
from minimq_broker.store.message_store import MessageStore
from minimq_broker.store.standby_offsets import Kept, StandbyOffsets
from minimq_common.names import is_group
from minimq_common.slices import slices

log = logging.getLogger(__name__)


class GroupOffsets:
    """The committed offsets of all groups. Belongs to the loop of the engine."""

    def __init__(self, writes: Writes, store: Callable[[], MessageStore], file: StandbyOffsets | None) -> None:
        self.keeps = False
        self._writes = writes
        self._store = store
        self._file = file
        self._keeping = asyncio.Lock()  # they are stored in commit order

    def check(self) -> None:
        """Raise `NotMaster` when this broker does not serve groups now."""
        if not self.keeps:
            self._writes.check()

    # ---- looking up -----------------------------------------------------------------------------

    def committed(self, group: str, queue: QueueKey) -> int | None:
        """Return the committed offset of a group, or None."""
        recorded = self._store().state.offset(group, queue)
        kept = self._file.get(group, queue) if self._file is not None and self.keeps else None
        if kept is None or self._store().state.topic_name(queue.topic_id) is None:
            return recorded
        return kept.offset if kept.forced or recorded is None else max(kept.offset, recorded)

    async def of_group(self, group: str) -> dict[QueueKey, int]:
        """Return all that a group has committed."""
        queues = list(self._store().state.index.queues(group))
        if self._file is not None and self.keeps:
            queues += [kept.queue for kept in self._file.rows() if kept.group == group]
        offsets: dict[QueueKey, int] = {}
        async for part in slices(queues):
            for queue in map(QueueKey._make, part):
                if (offset := self.committed(group, queue)) is not None:
                    offsets[queue] = offset
        return offsets

    # ---- committing -----------------------------------------------------------------------------

    async def commit(self, fact: OffsetsCommitted) -> None:
        """Return once offsets of a group are on disk. Raises `NotMaster` when they are not kept here."""
        # The writer takes jobs in order, so a later grant of a queue finds this commit applied.
        if not await self._keep(fact.group, lambda _: fact.offsets, forced=fact.forced):
            await self._writes.record(lambda _: fact, alone=False)

    async def start(self, group: str, decide: Callable[[State], GroupStarted | None]) -> None:
        """Record the initial offset of a group in a topic, from `decide`. Raises as `commit` does."""

        def offsets(state: State) -> Sequence[CommittedOffset]:
            fact = decide(state)
            return fact.offsets if fact is not None else ()

        if not await self._keep(group, offsets):
            await self._writes.record(decide)

    async def settle(self) -> None:
        """Return when all offsets that were committed before are on disk."""
        if not await self._keep("", lambda _: ()):
            await self._writes.record(lambda _: None)

    async def _keep(
        self, group: str, offsets: Callable[[State], Sequence[CommittedOffset]], *, forced: bool = False
    ) -> bool:
        if self._file is None or not self.keeps:
            return False
        async with self._keeping:
            if not self.keeps:
                return False
            state = self._store().state
            place = state.end_place
            items = offsets(state)
            if not forced:  # the file knows only what was committed here
                items = [item for item in items if self._goes_on(group, item)]
            if items:
                await uncancellable(asyncio.to_thread(self._file.put, group, items, place, forced=forced))
            return True

    def _goes_on(self, group: str, item: CommittedOffset) -> bool:
        before = self.committed(group, QueueKey(item.topic_id, item.queue_id))
        return before is None or item.offset > before

    # ---- handing over what is kept ----------------------------------------------------------------

    async def begin(self) -> int:
        """Return how often this slave has served groups, the time that begins now included."""
        assert self._file is not None
        state = self._store().state  # the log came later than what is kept, if that could not be handed over since
        await uncancellable(asyncio.to_thread(self._file.forget, partial(_is_overtaken, state)))
        return await uncancellable(asyncio.to_thread(self._file.begin))

    def kept(self, after: int = 0) -> list[Kept]:
        """Return the offsets kept after a number, in commit order."""
        return [] if self._file is None else self._file.rows(after)

    async def handed_over(self, number: int) -> None:
        """Forget the offsets kept up to a number: a master has it."""
        if self._file is not None:
            await uncancellable(asyncio.to_thread(self._file.recorded, number))

    async def take_over(self, rows: Sequence[Kept]) -> None:
        """Record, as the master, offsets that a replica kept while there was no master.

        What was read there and then taken back from its log does not count, nor what was kept before the group was
        set elsewhere by force. If it was set there by force, it does not count either once the group has gone on at a
        master: a replica may return late.
        """
        rows = _possible(rows, self._store().state)
        ends = {row: self._end_since(row) for row in rows}
        if gone := {row.group for row in rows if row.forced and _is_overtaken(self._store().state, row)}:
            log.info("offsets: not set as a slave has kept it, since they have moved since groups=%s", sorted(gone))
        for (group, forced), own in _by_group(rows).items():
            await self._writes.record(partial(_decide, group, own, ends, forced=forced))

    def _end_since(self, row: Kept) -> int:
        term = row.place.term or self._store().state.term  # an older release did not keep it
        return self._store().end_since(row.queue, term)

    async def retain_topics(self) -> None:
        """Forget the kept offsets of deleted topics; another one may get the same id."""
        if self._file is not None:
            await uncancellable(asyncio.to_thread(self._file.retain_topics, self._topic_ids()))

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _topic_ids(self) -> set[int]:
        return {topic.topic_id for topic in self._store().state.topics.copy().values()}


def _by_group(rows: Sequence[Kept]) -> dict[tuple[str, bool], list[Kept]]:
    grouped: dict[tuple[str, bool], list[Kept]] = {}
    for row in rows:
        grouped.setdefault((row.group, row.forced), []).append(row)
    return grouped


def _possible(rows: Sequence[Kept], state: State) -> list[Kept]:
    queues = {topic.topic_id: topic.queues for topic in state.topics.copy().values()}
    return [row for row in rows if 0 <= row.queue.queue_id < queues.get(row.queue.topic_id, 0) and row.offset >= 0]


def _is_overtaken(state: State, row: Kept) -> bool:
    is_overtaken = state.has_moved_since if row.forced else state.was_forced_since
    return is_overtaken(row.group, row.queue, row.place)


def _decide(
    group: str, rows: Sequence[Kept], ends: Mapping[Kept, int], state: State, *, forced: bool
) -> OffsetsCommitted | None:
    if not is_group(group):
        log.error("offsets: a slave has handed over offsets of what cannot be a group: %.200r", group)
        return None
    offsets = tuple(
        CommittedOffset(*row.queue, min(row.offset, ends[row]))
        for row in _possible(rows, state)
        if not _is_overtaken(state, row)
    )
    return OffsetsCommitted(group, offsets, forced) if offsets else None
