"""The observer of a CommitLog."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from minimq_broker.core.state import QueueKey


@dataclass(frozen=True, slots=True)
class LogObserver:
    """Functions that the log calls, on any thread."""

    name_of: Callable[[QueueKey], str]
    damage_found: Callable[[int, str], None]


#: For callers that go by what is raised, such as tools.
UNOBSERVED = LogObserver(str, lambda start, reason: None)
