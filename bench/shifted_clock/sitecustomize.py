"""Loaded by every Python that finds this folder in PYTHONPATH: the clock of the day of our own code can be shifted.

The variable SHIFTED_CLOCK names a file that holds by how many seconds. Only `time.time` and `time.time_ns` are shifted,
for the packages of minimq alone: libraries hand such times to C code, whose clock stays right.
"""

import os
import sys
import time
from pathlib import Path

_file = Path(os.environ["SHIFTED_CLOCK"])
_plain_ns = time.time_ns
_plain = time.time


def _shift() -> int:
    """Return by how much the clock of the caller's caller is shifted, in seconds."""
    name = sys._getframe(2).f_globals.get("__name__", "")
    return int(_file.read_text()) if name.startswith("minimq") else 0


def _time() -> float:
    return _plain() + _shift()


def _time_ns() -> int:
    return _plain_ns() + _shift() * 1_000_000_000


time.time = _time
time.time_ns = _time_ns
