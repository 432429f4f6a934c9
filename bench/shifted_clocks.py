"""Processes whose clock of the day can be set while they run. Their monotonic clock stays right."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path

from hooks import hook_for_children


class ShiftedClock:
    """A clock of the day that some processes share.

    Args:
        path: a file that holds by how much it is shifted.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self.shift(0)

    def shift(self, seconds: int) -> None:
        """Let the clock be wrong by so much from now on."""
        new = self._path.with_suffix(".new")
        new.write_text(str(seconds))
        new.replace(self._path)

    def for_children(self) -> AbstractContextManager[None]:
        """Processes that are started in the block go by this clock."""
        return hook_for_children("shifted_clock", SHIFTED_CLOCK=str(self._path))
