"""The connections of this process, shared by all the tasks that it runs."""

from __future__ import annotations

import os

from minimq.receiving.range_reader import RangeReader

#: By process as well, because a forked process inherits this dictionary but must not use the connections in it.
_readers: dict[tuple[int, str], RangeReader] = {}


def range_reader(nameserver: str) -> RangeReader:
    """Return this process's reader for a cluster. It is kept for as long as the process lives: tasks follow in it.

    Raises:
        minimq.MiniMQError: an address is not HOST:PORT.
    """
    key = os.getpid(), nameserver
    reader = _readers.get(key)
    if reader is None:
        reader = _readers.setdefault(key, RangeReader(nameserver))
    return reader
