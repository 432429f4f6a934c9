"""The wait for the line by which a server says that it is ready."""

from __future__ import annotations

import os
import threading
import time

import pytest

from minimq.local.server_process import _read_line


@pytest.mark.parametrize(("is_told", "timeout_s"), [(True, 60.0), (False, 0.3)])
def test_a_server_that_hangs_is_waited_for_until_the_timeout_or_until_it_is_to_end(
    is_told: bool, timeout_s: float
) -> None:
    reading, writing = os.pipe()
    told = threading.Event()
    if is_told:
        told.set()
    began_at = time.monotonic()
    with os.fdopen(reading, "rb") as pipe, os.fdopen(writing, "wb", buffering=0) as server:
        server.write(b"rea")
        assert _read_line(pipe, timeout_s, told) == "rea"
    waited_s = time.monotonic() - began_at
    assert waited_s < 30
    assert is_told or waited_s >= timeout_s
