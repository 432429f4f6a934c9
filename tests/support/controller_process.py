"""A name server with a controller, as a process that can be killed and comes back at the same address."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
from pathlib import Path

from support.process import process


class ControllerProcess:
    """Runs from `start` on; used as a context manager."""

    def __init__(self, directory: Path, lease_s: float) -> None:
        self.address = "127.0.0.1:0"
        self._directory = directory
        self._lease_s = lease_s
        self._running = contextlib.ExitStack()
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> ControllerProcess:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def start(self) -> None:
        command = [sys.executable, "-m", "minimq_nameserver", "--listen", self.address, "--log-level", "error"]
        command += ["--controller-dir", str(self._directory), "--term-lease", str(self._lease_s)]
        self._process = self._running.enter_context(process(*command))
        assert self._process.stdout is not None
        ready = re.fullmatch(r"ready nameserver (\S+)\n", self._process.stdout.readline())
        assert ready, self._process.communicate()
        self.address = ready[1]

    def kill(self) -> None:
        """As kill -9 does."""
        assert self._process is not None
        self._process.kill()
        self._running.close()
