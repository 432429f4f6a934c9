"""Logs an outage: a line at its start, one a minute while it lasts, and one at its end."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from minimq_common.errors import MinimqError

#: Minimum seconds between two lines about the same outage.
_REPEAT_S = 60.0
#: Kinds of failures that are logged as new during one outage; further kinds are only counted.
_MAX_KINDS = 8


class RetryLog:
    """Logs the failures of an action that is retried. Thread-safe.

    Logs the first failure of each kind, counts the following ones, and logs the count once a minute. Logs the first
    success with the length of the outage, at the highest level used during it, so a log that shows the start of an
    outage also shows its end.
    """

    def __init__(self, log: logging.Logger, clock: Callable[[], float] = time.monotonic) -> None:
        self._log = log
        self._clock = clock
        self._lock = threading.Lock()  # protects all below
        self._kinds: set[str] = set()  # of the current outage; empty if there is none
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
        """Log or count a failure."""
        fault = None if isinstance(cause, MinimqError | OSError) else cause
        if fault is not None or not str(cause):
            values = tuple(repr(value) if value is cause else value for value in values)
        self._failed(message, values, kind or _kind_of(cause), level if fault is None else logging.ERROR, fault)

    def crashed(self, message: str, *values: object, cause: BaseException) -> None:
        """Same as `failed`, but logs at level ERROR, with a traceback for the first failure of its kind."""
        self._failed(message, values, _kind_of(cause), logging.ERROR, cause)

    def _failed(
        self, message: str, values: tuple[object, ...], kind: str, level: int, fault: BaseException | None
    ) -> None:
        now = self._clock()
        with self._lock:
            if not self._kinds:
                self._began_at, self._failures, self._level = now, 0, level
            self._failures += 1
            is_new = kind not in self._kinds and len(self._kinds) < _MAX_KINDS
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
        """Log the end of the outage and return True; return False if there was none."""
        with self._lock:
            if not self._kinds:
                return False
            self._kinds.clear()
            level, failures, outage_s = self._level, self._failures, self._clock() - self._began_at
        self._log.log(level, f"{message} failures=%d outage_s=%.1f", *values, failures, outage_s)
        return True

    def forget(self) -> None:
        """End the outage without logging it: the action is not needed any more."""
        with self._lock:
            self._kinds.clear()


def _kind_of(cause: BaseException | None) -> str:
    if cause is None:
        return ""
    return cause.code if isinstance(cause, MinimqError) else type(cause).__name__
