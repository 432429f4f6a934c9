"""Waiting for a condition instead of sleeping for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 5.0, *, what: str = "") -> T:
    """Call until the result is true, and return it. Fails the test after `timeout` seconds.

    Args:
        predicate: cheap; called every few milliseconds.
        timeout: generous, since a loaded machine may need it; a test that passes never waits for it.
        what: what is waited for, for the failure.
    """
    deadline = time.monotonic() + timeout
    while True:
        result = predicate()
        if result:
            return result
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {timeout} s: {what or predicate}; last result: {result!r}")
        time.sleep(0.005)
