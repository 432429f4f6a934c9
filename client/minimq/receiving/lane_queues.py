"""Calls of a listener that wait for an earlier one, since both are of one message group of a FIFO topic."""

from __future__ import annotations

from collections import deque
from collections.abc import Container

from minimq.receiving.popped_delivery import PoppedDelivery
from minimq_common.model import MessageQueue


class LaneQueues:
    """Deliveries of which one of each lane is at work. Not thread-safe."""

    def __init__(self) -> None:
        #: Those behind the one at work, which is not among them.
        self._waiting: dict[tuple[MessageQueue, int], deque[PoppedDelivery]] = {}

    def add(self, delivery: PoppedDelivery) -> bool:
        """Take a delivery in; return whether it may begin now. Otherwise `following` returns it in its turn."""
        waiting = self._waiting.get((delivery.queue, delivery.lane))
        if waiting is not None:
            waiting.append(delivery)
        elif delivery.lane:
            self._waiting[delivery.queue, delivery.lane] = deque()
        return waiting is None

    def withdraw(self, delivery: PoppedDelivery) -> list[PoppedDelivery]:
        """Remove and return what waits for a delivery and was handed out together with it."""
        waiting = self._waiting[delivery.queue, delivery.lane]
        found = [each for each in waiting if each.epoch == delivery.epoch]
        self._waiting[delivery.queue, delivery.lane] = deque(each for each in waiting if each not in found)
        return found

    def following(self, delivery: PoppedDelivery, among: Container[PoppedDelivery]) -> PoppedDelivery | None:
        """Return the one that begins now as another is over, out of those that are still wanted; None if there is none.

        Args:
            delivery: is over.
            among: those that are wanted.
        """
        waiting = self._waiting[delivery.queue, delivery.lane]
        while waiting:
            if (found := waiting.popleft()) in among:
                return found
        del self._waiting[delivery.queue, delivery.lane]
        return None
