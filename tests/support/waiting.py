"""Waiting for a condition instead of sleeping for a while."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def wait_until(predicate: Callable[[], T], timeout: float = 60.0, *, what: str = "") -> T:
    """Call until the result is true, and return it. Fails the test after `timeout` seconds.

    Args:
        predicate: cheap; called every few milliseconds, and after a second of waiting every 50.
        timeout: generous, since a loaded machine may need it; a test that passes never waits for it. It proves nothing
            about speed: what has to happen at once is told from what happens later by options of minutes or hours, such
            as a lease or an expiry, so that nothing else can make the result true.
        what: what is waited for, for the failure.
    """
    began = time.monotonic()
    while True:
        result = predicate()
        if result:
            return result
        waited = time.monotonic() - began
        if waited >= timeout:
            raise AssertionError(f"not within {timeout} s: {what or predicate}; last result: {result!r}")
        # Questions to servers take the time of the cores on which the servers get there.
        time.sleep(min(0.005 + 0.05 * waited, 0.05))
