"""Asks for routes in the background, for callers that must not wait."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Iterable

from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError

log = client_logger(__name__)

#: Least time between the beginnings of two questions for one topic, in seconds.
_APART_S = 0.1


class RouteRefresher:
    """Asks one question after the other while `run` runs. Used on one event loop.

    However often a topic is wanted, it waits once, and is asked for at most every `_APART_S` seconds. One that is
    wanted while its question is under way is asked for again: the answer may be older than the wish.
    """

    def __init__(
        self,
        ask: Callable[[str], Awaitable[object]],
        neglected: Callable[[], Iterable[str]] = tuple,
        poll_s: float = math.inf,
    ) -> None:
        self._ask = ask
        self._neglected = neglected
        self._poll_s = poll_s
        self._changed = asyncio.Event()
        self._due: dict[str, float] = {}  # by topic, in seconds of the monotonic clock
        self._asked: dict[str, float] = {}  # what was asked for a moment ago, the latest at the end

    def want(self, topic: str) -> None:
        """Have a topic asked for soon."""
        if topic not in self._due:
            self._due[topic] = max(time.monotonic(), self._asked.get(topic, 0.0) + _APART_S)
            self._changed.set()

    async def run(self) -> None:
        """Ask for what is due, until this is cancelled."""
        poll_at = time.monotonic() + self._poll_s
        while True:
            now = time.monotonic()
            if now >= poll_at:
                poll_at = now + self._poll_s
                for neglected in self._neglected():
                    self._due.setdefault(neglected, now)
            topic = min(self._due, key=self._due.__getitem__, default=None)
            if topic is None or self._due[topic] > now:
                await self._wait_until(poll_at if topic is None else min(poll_at, self._due[topic]), now)
                continue
            del self._due[topic]
            self._note(topic, now)
            try:
                await self._ask(topic)
            except MiniMQError as error:
                log.debug("route not refreshed topic=%s reason=%s", topic, error.message)
            except Exception:
                log.exception("route not refreshed topic=%s", topic)

    async def _wait_until(self, at: float, now: float) -> None:
        self._changed.clear()
        try:
            async with asyncio.timeout(None if at == math.inf else at - now):
                await self._changed.wait()
        except TimeoutError:
            return

    def _note(self, topic: str, now: float) -> None:
        self._asked.pop(topic, None)
        while self._asked and self._asked[oldest := next(iter(self._asked))] + _APART_S <= now:
            del self._asked[oldest]
        self._asked[topic] = now
