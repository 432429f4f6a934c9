"""Compaction as a feature of the broker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from minimq_broker.calls.engine import Engine
from minimq_broker.features.compaction.compactor import Compactor
from minimq_broker.features.feature import Feature, Serving
from minimq_broker.options import BrokerOptions

if TYPE_CHECKING:
    from prometheus_client.core import Metric


class CompactionServing(Serving):
    def __init__(self, engine: Engine, options: BrokerOptions) -> None:
        kept_ms, interval_s = engine.clock.kept_ms, options.upkeep_interval_s
        self._task = Compactor(engine.handle, engine.lowest_needed, kept_ms, interval_s=interval_s)

    def start(self) -> None:
        self._task.start()

    async def stop(self) -> None:
        await self._task.stop()

    def metrics(self, prefix: str) -> Iterator[Metric]:
        from minimq_common.serving.metrics import counter  # late: only metrics need it

        text = "Messages of compacted topics that were removed: newer ones have their keys."
        yield counter(f"{prefix}_compaction_removed_messages_total", text, self._task.removed)


class Compaction(Feature):
    name = "compaction"
    serve = CompactionServing
