"""Memory that is freed is used again: counted in pages that the system had to give."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest

FRAMES = """
import resource
from minimq_common.allocator import keep_freed_memory

{first}

def passing():
    for _ in range(10):
        frames = [b"x" * (1 << 20) for _ in range(8)]

passing()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
passing()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def pages(first: str) -> int:
    """Return how many pages a process was given while 80 frames of 1 MiB passed through it, of which it held 16."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    command = [sys.executable, "-c", FRAMES.format(first=first)]
    return int(subprocess.run(command, env=environment, check=True, capture_output=True, timeout=60).stdout)


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators are left as they are")
def test_frames_that_pass_take_no_new_pages() -> None:
    assert pages("") > 10 * 256
    assert pages("keep_freed_memory()") < 256


FLOODED = """
from minimq_common.allocator import freed_bytes, give_back, keep_freed_memory

keep_freed_memory()
made = [bytearray(1 << 20 if at % 2 else 4096) for at in range(600)]
stay, blocks = made[::2], made[1::2]  # what is freed lies between what is not
del made
before = freed_bytes()
del blocks
kept = freed_bytes()

def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * 4096

held = resident()
give_back()
print(kept - before >> 20, held - resident() >> 20)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators do not tell")
def test_freed_memory_is_known_and_can_be_given_back() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MALLOC_")}
    told = subprocess.run(
        [sys.executable, "-c", FLOODED], env=environment, check=True, capture_output=True, timeout=60
    ).stdout
    kept, given = map(int, told.split())
    assert kept > 250
    assert given > 100
