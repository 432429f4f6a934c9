"""The command `minimq` as a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

COMMAND = [sys.executable, "-m", "minimq"]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MINIMQ_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(sys.path), **variables}


class Minimq:
    """Runs the command against one name server."""

    def __init__(self, nameserver: str) -> None:
        self.nameserver = nameserver

    def __call__(self, *arguments: str, stdin: bytes = b"", status: int = 0) -> str:
        """Return what it wrote to stdout, or to stderr when another exit status is expected."""
        done = subprocess.run(
            [*COMMAND, *arguments],
            env=environment(MINIMQ_NAMESERVER=self.nameserver),
            input=stdin,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, (done.stdout[-2000:], done.stderr[-2000:])
        return (done.stderr if status else done.stdout).decode()

    def json(self, *arguments: str) -> Any:  # noqa: ANN401 - as json has it
        return json.loads(self(*arguments, "--output", "json"))

    @contextmanager
    def running(self, *arguments: str, stdin: int | None = None, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """Run it beside the block, and end it with the block at the latest."""
        process = subprocess.Popen(
            [*COMMAND, *arguments],
            env=environment(MINIMQ_NAMESERVER=self.nameserver, **variables),
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        with process:
            try:
                yield process
            finally:
                process.kill()
