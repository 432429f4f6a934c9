"""Offsets that groups commit, recorded in the log of a master."""

from __future__ import annotations

from collections.abc import Callable

from minimq_broker.core.facts import GroupStarted, OffsetsCommitted
from minimq_broker.core.state import QueueKey, State
from minimq_broker.services.writes import Writes
from minimq_broker.store.message_store import MessageStore
from minimq_common.slices import slices


class GroupOffsets:
    """The committed offsets of all groups. Belongs to the loop of the engine."""

    def __init__(self, writes: Writes, store: Callable[[], MessageStore]) -> None:
        self._writes = writes
        self._store = store

    def check(self) -> None:
        """Raise `NotMaster` when this broker does not serve groups now."""
        self._writes.check()

    def committed(self, group: str, queue: QueueKey) -> int | None:
        """Return the committed offset of a group, or None."""
        return self._store().state.offset(group, queue)

    async def of_group(self, group: str) -> dict[QueueKey, int]:
        """Return all that a group has committed."""
        offsets: dict[QueueKey, int] = {}
        async for part in slices(list(self._store().state.index.queues(group))):
            for queue in map(QueueKey._make, part):
                if (offset := self.committed(group, queue)) is not None:
                    offsets[queue] = offset
        return offsets

    async def commit(self, fact: OffsetsCommitted) -> None:
        """Return once offsets of a group are on disk. Raises `NotMaster`."""
        # The writer takes jobs in order, so a later grant of a queue finds this commit applied.
        await self._writes.record(lambda _: fact, alone=False)

    async def start(self, decide: Callable[[State], GroupStarted | None]) -> None:
        """Record the initial offset of a group in a topic, from `decide`. Raises as `commit` does."""
        await self._writes.record(decide)

    async def settle(self) -> None:
        """Return when all offsets that were committed before are on disk."""
        await self._writes.record(lambda _: None)
