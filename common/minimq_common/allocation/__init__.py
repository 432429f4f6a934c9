"""The allocation strategies that brokers know as well as members: pure, chosen by name."""

from __future__ import annotations

from collections.abc import Mapping

from minimq_common.allocation.averagely import Averagely
from minimq_common.allocation.averagely_by_circle import AveragelyByCircle
from minimq_common.allocation.strategy import AllocationStrategy

#: By name; all of them divide each topic by itself and need to know nothing but members and queues.
BY_NAME: Mapping[str, AllocationStrategy] = {strategy.name: strategy for strategy in (Averagely(), AveragelyByCircle())}

__all__ = ["BY_NAME", "AllocationStrategy", "Averagely", "AveragelyByCircle"]
