"""Offsets that groups commit: recorded in the log by a master, kept beside it by a slave while there is no master."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from minimq_broker.core.facts import CommittedOffset, GroupStarted, OffsetsCommitted
from minimq_broker.core.state import QueueKey, State
from minimq_broker.replication.kept_offsets import KeptOffsets
from minimq_broker.services.store_slot import to_the_end

if TYPE_CHECKING:
    from minimq_broker.services.engine import Engine


class GroupOffsets:
    """The committed offsets of all groups. Belongs to the loop of the engine.

    Args:
        engine: records them.

    Attributes:
        kept: where offsets are kept while this slave serves groups because there is no master; None otherwise.
    """

    def __init__(self, engine: Engine) -> None:
        self.kept: KeptOffsets | None = None
        self._engine = engine
        self._keeping = asyncio.Lock()  # they are kept in the order in which they are committed

    def check(self) -> None:
        """Raise `NotMaster` when this broker does not serve groups now."""
        if self.kept is None:
            self._engine.check()

    def committed(self, group: str, queue: QueueKey) -> int | None:
        """Return the committed offset of a group, None when there is none."""
        kept = self.kept.get(group, queue) if self.kept is not None else None
        return self._engine.state.offset(group, queue) if kept is None else kept

    async def commit(self, fact: OffsetsCommitted) -> None:
        """Return once offsets of a group are on disk. Raises `NotMaster` when they are not kept here."""
        # The writer takes jobs in order, so a later grant of a queue finds this commit applied.
        if self.kept is None or not await self._keep(fact.group, lambda _: fact.offsets):
            await self._engine.record(lambda _: fact, alone=False)

    async def start(self, group: str, decide: Callable[[State], GroupStarted | None]) -> None:
        """Record where a group begins in a topic, as `decide` says. Raises as `commit` does."""

        def offsets(state: State) -> Sequence[CommittedOffset]:
            fact = decide(state)
            return fact.offsets if fact is not None else ()

        if self.kept is None or not await self._keep(group, offsets):
            await self._engine.record(decide)

    async def settle(self) -> None:
        """Return when all offsets that were committed before are on disk."""
        if self.kept is None or not await self._keep("", lambda _: ()):
            await self._engine.record(lambda _: None)

    async def _keep(self, group: str, offsets: Callable[[State], Sequence[CommittedOffset]]) -> bool:
        """Keep offsets of a group beside the log. Returns False when this broker does not."""
        async with self._keeping:
            kept = self.kept
            if kept is None:
                return False
            if items := offsets(self._engine.state):
                await to_the_end(asyncio.to_thread(kept.put, group, items))
            return True
