"""Asks for routes in the background, for those who must not wait."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterable

from minimq_common.errors import MiniMQError

log = logging.getLogger(__name__)

#: Least time between the beginnings of two questions for one topic, in seconds.
_APART_S = 0.1


class RouteRefresher:
    """Asks one question after the other, in a thread that begins with the first one, or with `start`.

    However often a topic is wanted, it waits once, and is asked for at most every `_APART_S` seconds. One that is
    wanted while its question is under way is asked for again: the answer may be older than the wish. Thread-safe.

    Args:
        ask: asks for a topic and takes the answer; may block and raise.
        neglected: returns the topics that are to be asked for although nobody wants them; it has to be quick.
        poll_s: seconds between two looks at them, the first of which is so long after the thread began.
    """

    def __init__(
        self, ask: Callable[[str], object], neglected: Callable[[], Iterable[str]] = tuple, poll_s: float = math.inf
    ) -> None:
        self._ask = ask
        self._neglected = neglected
        self._poll_s = poll_s
        self._changed = threading.Condition()  # protects all below
        self._due: dict[str, float] = {}  # by topic, in seconds of the monotonic clock
        self._asked: dict[str, float] = {}  # what was asked for a moment ago, the latest at the end
        self._poll_at = math.inf
        self._thread: threading.Thread | None = None
        self._closed = False

    def want(self, topic: str) -> None:
        """Have a topic asked for soon. Returns at once; nothing happens once it is closed."""
        with self._changed:
            if self._closed or topic in self._due:
                return
            self._due[topic] = max(time.monotonic(), self._asked.get(topic, 0.0) + _APART_S)
            self._changed.notify()
            self._start()

    def start(self) -> None:
        """Begin to look for neglected topics. Returns at once; nothing happens once it is closed."""
        with self._changed:
            if not self._closed:
                self._start()

    def close(self) -> None:
        """Ask for nothing more. Returns at once; `join` waits for the question under way."""
        with self._changed:
            self._closed = True
            self._changed.notify()

    def join(self) -> None:
        """Wait for the end of the thread; may be called from it."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _start(self) -> None:
        if self._thread is None:
            self._poll_at = time.monotonic() + self._poll_s
            self._thread = threading.Thread(target=self._run, name="minimq-route-refresh", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while (topic := self._next()) is not None:
            try:
                self._ask(topic)
            except MiniMQError as error:
                log.debug("route not refreshed topic=%s reason=%s", topic, error.message)
            except Exception:
                log.exception("route not refreshed topic=%s", topic)

    def _next(self) -> str | None:
        """Wait until a topic is due, and return it; None at the end."""
        with self._changed:
            while not self._closed:
                now = time.monotonic()
                if now >= self._poll_at:
                    self._poll_at = now + self._poll_s
                    for neglected in self._neglected():
                        self._due.setdefault(neglected, now)
                topic = min(self._due, key=self._due.__getitem__, default=None)
                if topic is not None and self._due[topic] <= now:
                    del self._due[topic]
                    self._note(topic, now)
                    return topic
                next_at = self._poll_at if topic is None else min(self._poll_at, self._due[topic])
                self._changed.wait(None if next_at == math.inf else next_at - now)
            return None

    def _note(self, topic: str, now: float) -> None:
        """Remember when a topic is asked for, and only as long as it matters."""
        self._asked.pop(topic, None)
        while self._asked and self._asked[oldest := next(iter(self._asked))] + _APART_S <= now:
            del self._asked[oldest]
        self._asked[topic] = now
