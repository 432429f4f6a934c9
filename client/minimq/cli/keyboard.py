"""Single keys of a terminal, while something else is shown there."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

#: The keys of the arrows, as terminals send them.
UP: Final = "\x1b[A"
DOWN: Final = "\x1b[B"
_ESCAPE_S = 0.02


class Keyboard:
    """Reads keys from stdin. Made by `keyboard`."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def key(self, timeout_s: float) -> str | None:
        """Return the next key, or `UP` or `DOWN`; None when none is pressed in that time, or stdin has ended."""
        if not select.select([self._fd], [], [], timeout_s)[0]:
            return None
        data = os.read(self._fd, 1)
        while data.startswith(b"\x1b") and len(data) < len(UP) and select.select([self._fd], [], [], _ESCAPE_S)[0]:
            data += os.read(self._fd, 1)
        return data.decode(errors="replace") or None


@contextmanager
def keyboard() -> Iterator[Keyboard]:
    """Have the terminal hand out keys one by one, without showing them, within the block."""
    fd = sys.stdin.fileno()
    former = termios.tcgetattr(fd)
    tty.setcbreak(fd)
    try:
        yield Keyboard(fd)
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, former)
