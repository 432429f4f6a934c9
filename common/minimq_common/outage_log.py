"""Outages in the log: a line when one begins, one a minute while it lasts, and one when it is over."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from minimq_common.errors import MiniMQError

#: Seconds between two lines about an outage that lasts.
_REPEAT_S = 60.0
#: Kinds of failures that one outage distinguishes; all further ones count as known.
_MOST_KINDS = 8


class OutageLog:
    """Logs failures of something that is tried again and again. Thread-safe.

    The first failure of each kind is logged; those that follow are counted, and a line a minute tells how many there
    were. The first success is logged with the length of the outage, at the highest level that was used during it, so
    that whoever saw the beginning sees the end.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()  # protects all below
        self._kinds: set[str] = set()  # of the present outage; empty when there is none
        self._began_at = self._repeat_at = 0.0
        self._failures = 0
        self._level = logging.NOTSET

    def failed(
        self,
        message: str,
        *values: object,
        cause: BaseException | None = None,
        kind: str = "",
        level: int = logging.WARNING,
    ) -> None:
        """Log a failure, unless one of its kind was logged during this outage, less than a minute ago.

        A cause that is neither an error of minimq nor one of the system is a fault, see `crashed`.
        """
        fault = None if isinstance(cause, MiniMQError | OSError) else cause
        if fault is not None or not str(cause):
            values = tuple(repr(value) if value is cause else value for value in values)
        self._failed(message, values, kind or _kind_of(cause), level if fault is None else logging.ERROR, fault)

    def crashed(self, message: str, *values: object, cause: BaseException) -> None:
        """Log a fault as an error: as `failed`, with the traceback of the first of its kind."""
        self._failed(message, values, _kind_of(cause), logging.ERROR, cause)

    def _failed(
        self, message: str, values: tuple[object, ...], kind: str, level: int, fault: BaseException | None
    ) -> None:
        now = self._clock()
        with self._lock:
            if not self._kinds:
                self._began_at, self._failures, self._level = now, 0, level
            self._failures += 1
            is_new = kind not in self._kinds and len(self._kinds) < _MOST_KINDS
            if not is_new and now < self._repeat_at:
                return
            self._kinds.add(kind)
            self._repeat_at = now + _REPEAT_S
            self._level = max(self._level, level)
            failures, outage_s = self._failures, now - self._began_at
        shown = fault if is_new else None
        if failures == 1:
            self._log.log(level, message, *values, exc_info=shown)
        else:
            self._log.log(level, f"{message} failures=%d outage_s=%.1f", *values, failures, outage_s, exc_info=shown)

    def worked(self, message: str, *values: object) -> bool:
        """Log the end of the outage. Returns False, and logs nothing, when there was none."""
        with self._lock:
            if not self._kinds:
                return False
            self._kinds.clear()
            level, failures, outage_s = self._level, self._failures, self._clock() - self._began_at
        self._log.log(level, f"{message} failures=%d outage_s=%.1f", *values, failures, outage_s)
        return True

    def forget(self) -> None:
        """End the outage without a line: what failed is not wanted any more."""
        with self._lock:
            self._kinds.clear()


def _kind_of(cause: BaseException | None) -> str:
    if cause is None:
        return ""
    return cause.code if isinstance(cause, MiniMQError) else type(cause).__name__
