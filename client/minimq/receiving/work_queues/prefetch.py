"""Taking messages before the application asks for them, so that few requests bring many."""

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

from minimq.connection.connection import Connection
from minimq.receiving.work_queues.popped import PoppedMessage
from minimq.receiving.work_queues.takes_in_turn import TakeResult
from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError

#: Messages are taken ahead for so many seconds of work: a broker is asked that often, and others get the rest.
_AHEAD_S = 0.1


class _PrefetchedTake(NamedTuple):
    """Messages of one queue, and until when they may be received, on the monotonic clock."""

    messages: Iterator[PoppedMessage]
    until: float


class Prefetched:
    """Messages that wait to be received, the oldest first. One thread adds them, any receives: moves are atomic."""

    def __init__(self) -> None:
        self._parts: deque[_PrefetchedTake] = deque()

    def __len__(self) -> int:
        return sum(length_hint(part.messages) for part in [*self._parts])  # which others may change meanwhile

    def add(self, messages: Sequence[PoppedMessage], until: float) -> None:
        """Add messages of one queue, which may be received until some time."""
        self._parts.append(_PrefetchedTake(iter(messages), until))

    def take(self, most: int, now: float, into: list[PoppedMessage]) -> bool:
        """Move messages of one queue into an empty list; return whether there were any.

        Ctrl-C comes before or after they are moved, so that none is in neither place, or in both.
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

    def late(self, now: float) -> list[PoppedMessage]:
        """Remove the messages whose time is over, and return them."""
        found: list[PoppedMessage] = []
        for part in [*self._parts]:
            if part.until > now:
                break
            found += part.messages
            with suppress(ValueError):
                self._parts.remove(part)
        return found


class Pace:
    """The pace at which an application receives messages: about, as threads may count at the same time."""

    def __init__(self) -> None:
        self.ahead = 0
        self._count = 0
        self._since = 0.0

    def received(self, count: int, now: float) -> None:
        """Note that messages were received."""
        elapsed = now - self._since
        if elapsed >= _AHEAD_S:
            self.ahead = int(self._count * _AHEAD_S / elapsed)
            self._count, self._since = 0, now
        self._count += count


log = client_logger(__name__)

#: Prefetched messages that nobody has received after so many seconds go to others. Brokers keep them for that long in
#: addition, so that each is received with its whole invisible duration.
PREFETCH_HOLD_S = 0.5
#: Nothing is taken ahead for who makes fewer calls in the time for which that would last.
_FEWEST_CALLS = 2


class Prefetch:
    """Takes messages ahead while an application receives many in little time, and brokers have more.

    No more are taken than it receives in a moment, and they wait only a moment. Those that failed before are never
    taken ahead: a process that ends takes no try from them. Thread-safe.
    """

    def __init__(
        self,
        connection: Connection,
        limit: int,
        take: Callable[[int], Awaitable[TakeResult]],
        give_back: Callable[[Sequence[PoppedMessage]], None],
    ) -> None:
        self._connection = connection
        self._limit = self._fitting = limit
        self._take = take
        self._give_back = give_back
        self._messages = Prefetched()
        self._pace = Pace()
        #: Until when messages are waited for that were asked for.
        self._asked_until = 0.0
        # What follows is changed on the event loop alone.
        self._has_more = False
        self._is_closed = False
        self._running: asyncio.Task[None] | None = None

    def receive(self, most: int, into: list[PoppedMessage]) -> bool:
        """Move prefetched messages of one queue into an empty list; return whether there were any. On any thread."""
        now = time.monotonic()
        if self._messages.take(most, now, into):
            self._pace.received(len(into), now)
        self._ask(most, now)
        return bool(into)

    def _ask(self, most: int, now: float) -> None:
        ahead = min(self._pace.ahead, self._limit)
        is_low = self._has_more and now >= self._asked_until and ahead >= _FEWEST_CALLS * most
        if is_low and 2 * len(self._messages) <= ahead and not self._is_closed:
            self._asked_until = now + PREFETCH_HOLD_S  # not forever: Ctrl-C may come before the next line
            self._connection.call_soon(self._begin, min(ahead, max(most, self._fitting)))

    # ---- on the event loop -------------------------------------------------------------------------

    def received(self, taken: TakeResult, most: int) -> None:
        """Note what a take has brought that somebody waited for."""
        now = time.monotonic()
        self._pace.received(len(taken.messages), now)
        self._has_more = taken.has_more and all(message.tries == 1 for message in taken.messages)
        self._ask(most, now)

    def _begin(self, count: int) -> None:
        if self._running is None and not self._is_closed:
            self._asked_until = math.inf
            self._running = asyncio.create_task(self._fill(count))

    async def _fill(self, count: int) -> None:
        taken, until = TakeResult([]), time.monotonic() + PREFETCH_HOLD_S
        try:
            taken = await self._take(count)
        except MiniMQError as error:  # whoever waits for messages is told
            log.debug("consumer: took nothing ahead reason=%s", error)
        except Exception:
            log.exception("consumer: took nothing ahead")
        finally:
            self._running = None
            # If this takes so long that messages are late, whoever waits asks for some itself.
            self._has_more = taken.has_more and time.monotonic() < until
            # A broker hands out what its answers have room for, whatever was asked for.
            self._fitting = taken.count if taken.count < count else min(2 * self._fitting, self._limit)
            if taken.messages:
                self._messages.add(taken.messages, until)
            self._asked_until = 0.0
            if taken.messages:
                asyncio.get_running_loop().call_at(until, self._drop_late)

    def _drop_late(self) -> None:
        self._give_back(self._messages.late(time.monotonic()))

    async def wait(self, most: int, until: float, into: list[PoppedMessage]) -> bool:
        """Do as `receive`, and wait for messages that are being taken ahead."""
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

    async def close(self, timeout_s: float) -> list[PoppedMessage]:
        """Take nothing ahead any more; return what nobody has received."""
        self._is_closed = True
        if self._running is not None:
            await asyncio.wait([self._running], timeout=timeout_s)
        return self._messages.late(math.inf)
