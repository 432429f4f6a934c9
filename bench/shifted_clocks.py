"""Shifts the wall clock of running processes. Their monotonic clock is not changed."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from hooks import hook_for_children


class ShiftedClock:
    """A wall clock that some processes share.

    Args:
        path: a file for the shift of the clock.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """Shift the clock from now on."""
        new = self._path.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._path)

    def for_children(self) -> AbstractContextManager[None]:
        """Let processes that start in the block use this clock."""
        return hook_for_children("shifted_clock", SHIFTED_CLOCK=str(self._path))
