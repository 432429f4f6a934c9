"""Any program as a child process."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def process(*command: str, **variables: str) -> Iterator[subprocess.Popen[str]]:
    """Run a command with our packages beside the block, and end it with the block at the latest."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path), **variables}
    pipe = subprocess.PIPE
    started = subprocess.Popen(
        command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=environment, start_new_session=True
    )
    with started:
        try:
            yield started
        finally:
            if started.poll() is None:
                started.kill()
