"""Prefetches messages of work queues, so that few requests bring many."""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from itertools import islice
from operator import length_hint
from typing import NamedTuple

from minimq.connection.client_log import client_logger
from minimq.connection.connection import Connection
from minimq.features.work_queues.work_queue_fetcher import TakeResult
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_common.errors import MinimqError

#: Prefetch what the application receives in this time: long enough for few requests, and others get the rest.
_AHEAD_S = 0.1


class _PrefetchedTake(NamedTuple):
    """Messages of one queue, which may be received until a time of the monotonic clock."""

    messages: Iterator[WorkQueueMessage]
    until: float


class Prefetched:
    """Prefetched messages, oldest first. One thread adds them, any thread takes them: each move is atomic."""

    def __init__(self) -> None:
        self._parts: deque[_PrefetchedTake] = deque()

    def __len__(self) -> int:
        return sum(length_hint(part.messages) for part in [*self._parts])  # a copy: other threads may change it

    def add(self, messages: Sequence[WorkQueueMessage], until: float) -> None:
        """Add messages of one queue, which may be received before `until`."""
        self._parts.append(_PrefetchedTake(iter(messages), until))

    def take(self, most: int, now: float, into: list[WorkQueueMessage]) -> bool:
        """Move messages of one queue into an empty list; return whether there were any.

        The move is atomic: Ctrl-C can neither lose nor duplicate a message.
        """
        parts = self._parts
        for part in [*parts]:
            if now >= part.until:
                return False
            into.extend(islice(part.messages, most))
            if into:
                return True
            with suppress(ValueError):  # another thread has removed it
                parts.remove(part)
        return False

    def late(self, now: float) -> list[WorkQueueMessage]:
        """Remove and return the messages whose time is over."""
        found: list[WorkQueueMessage] = []
        for part in [*self._parts]:
            if part.until > now:
                break
            found += part.messages
            with suppress(ValueError):
                self._parts.remove(part)
        return found


class ReceiveRate:
    """Estimates how many messages the application receives in `_AHEAD_S`; approximate, as threads count unlocked."""

    def __init__(self) -> None:
        self.ahead = 0
        self._count = 0
        self._since = 0.0

    def received(self, count: int, now: float) -> None:
        elapsed = now - self._since
        if elapsed >= _AHEAD_S:
            self.ahead = int(self._count * _AHEAD_S / elapsed)
            self._count, self._since = 0, now
        self._count += count


log = client_logger(__name__)

#: Prefetched messages that are not received in this time are returned to the broker. Their invisible duration is longer
#: by this time, so that each message is received with its whole duration.
PREFETCH_HOLD_S = 0.5
#: Prefetch only if the application receives the messages of at least this many calls in `_AHEAD_S`.
_MIN_CALLS = 2


class Prefetch:
    """Prefetches messages while the application receives at a high rate and brokers have more.

    Takes no more than the application receives in `_AHEAD_S`, and holds them for `PREFETCH_HOLD_S` only. Messages that
    failed before are never prefetched, so that the death of a process does not count for them. Thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        limit: int,
        take: Callable[[int], Awaitable[TakeResult]],
        give_back: Callable[[Sequence[WorkQueueMessage]], None],
    ) -> None:
        self._connection = connection
        self._limit = self._fitting = limit
        self._take = take
        self._give_back = give_back
        self._messages = Prefetched()
        self._pace = ReceiveRate()
        #: A prefetch was requested; until this time no other is.
        self._asked_until = 0.0
        # The rest is changed on the event loop only.
        self._has_more = False
        self._is_closed = False
        self._running: asyncio.Task[None] | None = None

    def receive(self, most: int, into: list[WorkQueueMessage]) -> bool:
        """Move prefetched messages of one queue into an empty list; return whether there were any. On any thread."""
        now = time.monotonic()
        if self._messages.take(most, now, into):
            self._pace.received(len(into), now)
        self._ask(most, now)
        return bool(into)

    def _ask(self, most: int, now: float) -> None:
        ahead = min(self._pace.ahead, self._limit)
        is_low = self._has_more and now >= self._asked_until and ahead >= _MIN_CALLS * most
        if is_low and 2 * len(self._messages) <= ahead and not self._is_closed:
            self._asked_until = now + PREFETCH_HOLD_S  # finite, since Ctrl-C may come before the next line
            self._connection.call_soon(self._begin, min(ahead, max(most, self._fitting)))

    # ---- on the event loop -------------------------------------------------------------------------

    def received(self, taken: TakeResult, most: int) -> None:
        """Record the result of a take that a `receive` has waited for."""
        now = time.monotonic()
        self._pace.received(len(taken.messages), now)
        self._has_more = taken.has_more and all(message.delivery_count == 1 for message in taken.messages)
        self._ask(most, now)

    def _begin(self, count: int) -> None:
        if self._running is None and not self._is_closed:
            self._asked_until = math.inf
            self._running = asyncio.create_task(self._fill(count))

    async def _fill(self, count: int) -> None:
        taken, until = TakeResult([]), time.monotonic() + PREFETCH_HOLD_S
        try:
            taken = await self._take(count)
        except MinimqError as error:  # a `receive` that takes for itself raises it
            log.debug("consumer: took nothing ahead reason=%s", error)
        except Exception:
            log.exception("consumer: took nothing ahead")
        finally:
            self._running = None
            # A take so slow that its messages are late: stop, so that each `receive` takes for itself.
            self._has_more = taken.has_more and time.monotonic() < until
            # Responses have a limited size: ask only for what fits.
            self._fitting = taken.count if taken.count < count else min(2 * self._fitting, self._limit)
            if taken.messages:
                self._messages.add(taken.messages, until)
            self._asked_until = 0.0
            if taken.messages:
                asyncio.get_running_loop().call_at(until, self._drop_late)

    def _drop_late(self) -> None:
        self._give_back(self._messages.late(time.monotonic()))

    async def wait(self, most: int, until: float, into: list[WorkQueueMessage]) -> bool:
        """Do as `receive`, but wait for a prefetch in progress."""
        loop = asyncio.get_running_loop()
        while not self.receive(most, into):
            left_s = until - loop.time()
            if time.monotonic() >= self._asked_until or left_s <= 0:
                return False
            if self._running is None:  # it is about to begin
                await asyncio.sleep(0)
            else:
                await asyncio.wait([self._running], timeout=left_s)
        return True

    async def close(self, timeout_s: float) -> list[WorkQueueMessage]:
        """Stop prefetching; return the messages that were not received."""
        self._is_closed = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=timeout_s)
        return self._messages.late(math.inf)
