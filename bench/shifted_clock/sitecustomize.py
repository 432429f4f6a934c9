"""Loaded by every Python process with this folder in PYTHONPATH: shifts the wall clock of our own code.

The variable SHIFTED_CLOCK names a file with the shift in seconds. Only `time.time` and `time.time_ns` are shifted, and
only for minimq's packages: libraries pass such times to C code, whose clock is not shifted.
"""

import os
import sys
import time
from pathlib import Path

_file = Path(os.environ["SHIFTED_CLOCK"])
_plain_ns = time.time_ns
_plain = time.time


def _shift() -> int:
    """Return the shift in seconds for the caller's caller."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return int(_file.read_text()) if name.startswith("minimq") else 0


def _time() -> float:
    return _plain() + _shift()


def _time_ns() -> int:
    return _plain_ns() + _shift() * 1_000_000_000


time.time = _time
time.time_ns = _time_ns
