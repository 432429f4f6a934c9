"""A saved state on its way to another replica."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A saved state: what the entries of the log up to a position lead to."""

    position: int
    rows: list[tuple[bytes, bytes]]
