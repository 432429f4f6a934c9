"""The memory of a Python worker of Spark."""

from __future__ import annotations

import gc
import os
import sys
from typing import Final

_DAEMON: Final = "pyspark.daemon"
#: The next call loads some more, for instance that of Arrow's functions which the first rows need.
_CALLS: Final = 2

_calls: dict[int, int] = {}


def spare_collector() -> None:
    """Keep what a worker has loaded out of the garbage collection that Spark has it do after each call.

    Looking through the modules of pandas, Arrow and gRPC takes 50 ms of a processor each time, more than most tasks
    read in. Does nothing but in a worker that Spark uses again, and nothing any more after its first calls: what is
    garbage then would stay.
    """
    process = os.getpid()
    calls = _calls.get(process, 0)
    if calls < _CALLS and getattr(getattr(sys.modules["__main__"], "__spec__", None), "name", "") == _DAEMON:
        _calls[process] = calls + 1
        gc.freeze()
