"""The base of all jobs for the writer."""

from __future__ import annotations

from dataclasses import dataclass, field

from minimq_common.errors import MiniMQError


@dataclass(slots=True, eq=False)
class Job:
    """Something to write. The writer sets `error` or the results, then hands the job back."""

    error: MiniMQError | None = field(default=None, init=False)
