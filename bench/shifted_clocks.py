"""Processes whose clock of the day can be set while they run. Their monotonic clock stays right."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_HOOK = Path(__file__).parent / "shifted_clock"


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

    @contextmanager
    def for_children(self) -> Iterator[None]:
        """Processes that are started in the block go by this clock."""
        path = os.pathsep.join([str(_HOOK), *filter(None, [os.environ.get("PYTHONPATH")])])
        variables = {"SHIFTED_CLOCK": str(self._path), "PYTHONPATH": path}
        before = {name: os.environ.get(name) for name in variables}
        os.environ.update(variables)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value
