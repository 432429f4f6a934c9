"""Prefetches messages of work queues, so that few requests bring many."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from minimq.connection.connection import Connection
from minimq.features.work_queues.taken_messages import TakeResult
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_common.errors import MinimqError

log = logging.getLogger(__name__)

#: Prefetch what the application receives in this time: long enough for few requests, and others get the rest.
_AHEAD_S = 0.1
#: Prefetched messages that are not received in this time are returned to the broker. Their invisible duration is longer
#: by this time, so that each message is received with its whole duration.
PREFETCH_HOLD_S = 0.5
#: Prefetch only if the application receives the messages of at least this many calls in `_AHEAD_S`.
_MIN_CALLS = 2


class _PrefetchedTake(NamedTuple):
    """Messages of one queue, which may be received until a time of the monotonic clock."""

    messages: list[WorkQueueMessage]
    until: float


class Prefetch:
    """Prefetches messages while the application receives at a high rate and brokers have more.

    Takes no more than the application receives in `_AHEAD_S`, and holds them for `PREFETCH_HOLD_S` only. Messages that
    failed before are never prefetched, so that the death of a process does not count for them. Thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        limit: int,
        take: Callable[[int], Awaitable[tuple[list[WorkQueueMessage], int, bool]]],
        give_back: Callable[[Sequence[WorkQueueMessage]], None],
    ) -> None:
        self._connection = connection
        self._limit = self._fitting = limit
        self._take = take
        self._give_back = give_back
        #: The brokers have more messages, and none are being prefetched.
        self._may_ask = False
        self._running: asyncio.Task[None] | None = None  # belongs to the event loop
        #: Protects the rest.
        self._lock = threading.Lock()
        #: Oldest first.
        self._takes: deque[_PrefetchedTake] = deque()
        #: How many messages the application receives in `_AHEAD_S`, and those received since a time.
        self._ahead = self._received = 0
        self._since = 0.0

    @property
    def count(self) -> int:
        """The number of prefetched messages."""
        return sum(len(taken.messages) for taken in [*self._takes])

    def receive(self, most: int, into: list[WorkQueueMessage]) -> bool:
        """Move prefetched messages of one queue into an empty list; return whether there were any. On any thread."""
        if not self._limit:
            return False
        with self._lock:
            now = time.monotonic()
            if self._takes and now < self._takes[0].until:
                messages = self._takes[0].messages
                into += messages[:most]  # first: after Ctrl-C, the caller returns them to the broker
                del messages[:most]
                if not messages:
                    self._takes.popleft()
                self._note(len(into), now)
        self._ask(most)
        return bool(into)

    def _note(self, count: int, now: float) -> None:
        elapsed = now - self._since
        if elapsed >= _AHEAD_S:
            self._ahead = int(self._received * _AHEAD_S / elapsed)
            self._received, self._since = 0, now
        self._received += count

    def _ask(self, most: int) -> None:
        ahead = min(self._ahead, self._limit)
        if self._may_ask and ahead >= _MIN_CALLS * most and 2 * self.count <= ahead:
            self._may_ask = False
            self._connection.call_soon(self._begin, min(ahead, max(most, self._fitting)))

    # ---- on the event loop -------------------------------------------------------------------------

    def received(self, taken: TakeResult, most: int) -> None:
        """Record the result of a take that a `receive` has waited for."""
        if not self._limit:
            return
        with self._lock:
            self._note(taken.count, time.monotonic())
        self._may_ask = taken.has_more and taken.is_first_delivery
        self._ask(most)

    def _begin(self, count: int) -> None:
        if self._running is None and self._limit:
            self._running = asyncio.create_task(self._fill(count))

    async def _fill(self, count: int) -> None:
        messages, taken, has_more = list[WorkQueueMessage](), 0, False
        until = time.monotonic() + PREFETCH_HOLD_S
        try:
            messages, taken, has_more = await self._take(count)
        except MinimqError as error:  # a `receive` that takes for itself raises it
            log.debug("consumer: took nothing ahead reason=%s", error)
        except Exception:
            log.exception("consumer: took nothing ahead")
        self._running = None
        # Responses have a limited size: ask only for what fits.
        self._fitting = taken if taken < count else min(2 * self._fitting, self._limit)
        if messages:
            with self._lock:
                self._takes.append(_PrefetchedTake(messages, until))
            asyncio.get_running_loop().call_at(until, self._return_late)
        # After a take so slow that its messages are late, each `receive` takes for itself.
        self._may_ask = has_more and time.monotonic() < until

    def _return_late(self) -> None:
        self._give_back(self._late(time.monotonic()))

    def _late(self, now: float) -> list[WorkQueueMessage]:
        found: list[WorkQueueMessage] = []
        with self._lock:
            while self._takes and self._takes[0].until <= now:
                found += self._takes.popleft().messages
        return found

    async def wait(self, most: int, until: float, into: list[WorkQueueMessage]) -> bool:
        """Do as `receive`, but wait for a prefetch in progress."""
        while not self.receive(most, into):
            left_s = until - time.monotonic()
            if self._running is None or left_s <= 0:
                return False
            await asyncio.wait([self._running], timeout=left_s)
        return True

    async def close(self, timeout_s: float) -> list[WorkQueueMessage]:
        """Stop prefetching; return the messages that were not received."""
        self._limit = 0
        if self._running is not None:
            await asyncio.wait([self._running], timeout=timeout_s)
        return self._late(math.inf)
