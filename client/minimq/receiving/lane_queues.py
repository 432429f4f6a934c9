"""Calls of a listener that wait for an earlier one with messages of the same message group."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from minimq.receiving.popped_delivery import PoppedDelivery
from minimq_common.model import MessageQueue


class LaneQueues:
    """The deliveries of each lane, of which one may be at work and the others wait. Not thread-safe."""

    def __init__(self) -> None:
        #: By queue and lane, the deliveries that wait for the one at work.
        self._waiting: dict[tuple[MessageQueue, int], deque[PoppedDelivery]] = {}

    def add(self, delivery: PoppedDelivery) -> bool:
        """Add a delivery; return whether it may begin now. Otherwise `following` returns it when its turn has come."""
        waiting = self._waiting.get((delivery.queue, delivery.lane))
        if waiting is not None:
            waiting.append(delivery)
        elif delivery.lane:
            self._waiting[delivery.queue, delivery.lane] = deque()
        return waiting is None

    def withdraw(self, delivery: PoppedDelivery) -> list[PoppedDelivery]:
        """Remove and return the deliveries that wait for one and came from the broker together with it."""
        waiting = self._waiting[delivery.queue, delivery.lane]
        found = [each for each in waiting if each.epoch == delivery.epoch]
        self._waiting[delivery.queue, delivery.lane] = deque(each for each in waiting if each not in found)
        return found

    def following(self, delivery: PoppedDelivery, among: Container[PoppedDelivery]) -> PoppedDelivery | None:
        """Return the delivery whose turn has come; None if none waits."""
        waiting = self._waiting[delivery.queue, delivery.lane]
        while waiting:
            if (found := waiting.popleft()) in among:
                return found
        del self._waiting[delivery.queue, delivery.lane]
        return None
