"""The messages that a consumer of a work queue has received and not settled."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from contextlib import suppress
from dataclasses import dataclass

from minimq.receiving.work_queues.popped import Receipts
from minimq_common.model import MessageQueue


@dataclass(slots=True)
class _Delivered:
    """Unsettled messages of one delivery by the broker, until a time of the loop."""

    count: int
    until: float


class InHand:
    """Counts what was received and not settled. Lives on the event loop of the connection.

    A suspect is a message that was lost with a consumer. If it ends this one, too, nothing else shall be lost with it.
    """

    def __init__(self) -> None:
        #: About in the order in which their time ends.
        self._delivered: OrderedDict[tuple[MessageQueue, int], _Delivered] = OrderedDict()
        #: The delivery that has a suspect.
        self._suspect: tuple[MessageQueue, int] | None = None
        #: A suspect was refused: what is in hand is to be settled first.
        self._makes_room = False
        self._changed = asyncio.Event()

    def add(self, queue: MessageQueue, epoch: int, count: int, invisible_s: float, *, suspect: bool) -> bool:
        """Add a delivery; return False if it has to be returned: a suspect and other messages may not meet."""
        now = asyncio.get_running_loop().time()
        if suspect or self._is_busy:
            self._makes_room |= suspect
            if self._has_any(now):
                return False
        self._makes_room = False
        self._suspect = (queue, epoch) if suspect else None
        while self._delivered and next(iter(self._delivered.values())).until <= now:
            self._delivered.popitem(last=False)
        self._delivered[queue, epoch] = _Delivered(count, now + invisible_s)
        return True

    def make_room(self) -> None:
        """Let nothing join what is in hand: a suspect waits."""
        self._makes_room = True

    def settled(self, receipts: Receipts) -> None:
        """Note that messages were settled, or are somebody else's."""
        for (queue, epoch), spans in receipts.items():
            if (found := self._delivered.get((queue, epoch))) is not None:
                for first, end in spans:
                    found.count -= end - first
                if found.count <= 0:
                    del self._delivered[queue, epoch]
                    self._changed.set()

    def extended(self, receipts: Receipts, invisible_s: float) -> None:
        """Note that messages stay in hand."""
        until = asyncio.get_running_loop().time() + invisible_s
        for key in receipts:
            if (found := self._delivered.get(key)) is not None:
                found.until = max(found.until, until)
                self._delivered.move_to_end(key)

    async def turn(self, until: float) -> None:
        """Return when more may be received, or at a time of the loop."""
        loop = asyncio.get_running_loop()
        while self._is_busy and self._has_any(now := loop.time()) and now < until:
            self._changed.clear()
            late = min(each.until for each in self._delivered.values())
            with suppress(TimeoutError):
                async with asyncio.timeout_at(min(until, late)):
                    await self._changed.wait()

    @property
    def _is_busy(self) -> bool:
        return self._makes_room or self._suspect in self._delivered

    def _has_any(self, now: float) -> bool:
        for key in [key for key, each in self._delivered.items() if each.until <= now]:
            del self._delivered[key]
        return bool(self._delivered)
