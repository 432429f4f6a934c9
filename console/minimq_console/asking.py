"""Calls to the cluster for one page: side by side, and none is waited for longer than the page may take."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Executor, Future
from concurrent.futures import TimeoutError as LateError
from typing import Generic, TypeVar

from minimq_common.errors import DeadlineExceeded, MiniMQError

Value = TypeVar("Value")
Default = TypeVar("Default")

#: Seconds that the calls of a page may take together; what has not come then is missing, and the page says so.
PATIENCE_S = 1.8


class Asked(Generic[Value]):
    """One call that is under way. Used by one thread."""

    def __init__(self, what: str, future: Future[Value], give_up: float, missing: list[str]) -> None:
        self._what = what
        self._future = future
        self._give_up = give_up
        self._missing = missing

    def required(self) -> Value:
        """Return the value."""
        try:
            return self._future.result(max(self._give_up - time.monotonic(), 0))
        except LateError:
            self._future.cancel()
            raise DeadlineExceeded(
                f"{self._what}: no answer within {PATIENCE_S:g} s; the page tries again by itself"
            ) from None

    def or_else(self, default: Default) -> Value | Default:
        """Return the value, or a default if it does not come, which the page then says."""
        try:
            return self.required()
        except MiniMQError as error:
            text = error.message
            self._missing.append(text if text.startswith(self._what) else f"{self._what}: {text}")
            return default


class Asking:
    """The calls of one page. Used by one thread."""

    def __init__(self, threads: Executor, patience_s: float = PATIENCE_S) -> None:
        self._threads = threads
        self._give_up = time.monotonic() + patience_s
        self.missing: list[str] = []

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return max(self._give_up - time.monotonic(), 0.0)

    def ask(self, what: str, call: Callable[[], Value]) -> Asked[Value]:
        """Begin a call."""
        return Asked(what, self._threads.submit(call), self._give_up, self.missing)
