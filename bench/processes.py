"""Measures processes from outside, and runs functions in processes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from process_tree import stat_fields

_TICKS = os.sysconf("SC_CLK_TCK")
_HERE = Path(__file__).parent


def cpu_times(pid: int) -> tuple[float, float]:
    """Return the CPU seconds of a process, in user mode and in the kernel."""
    fields = stat_fields(pid)
    assert fields is not None, f"process {pid} has ended"
    return int(fields[11]) / _TICKS, int(fields[12]) / _TICKS


def cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of a process."""
    return sum(cpu_times(pid))


def cpu_seconds_with_children(pid: int) -> float:
    """Return the CPU seconds of a process and its ended children; 0 if there is no such process."""
    return sum(map(int, (stat_fields(pid) or [])[11:15])) / _TICKS


def anonymous_bytes(pid: int) -> int:
    """Return the resident memory of a process without the pages of mapped files."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("RssAnon:"):
            return int(line.split()[1]) * 1024
    raise AssertionError("the kernel does not tell RssAnon")


def machine_busy_seconds() -> float:
    """Return the total busy time of all processors."""
    fields = [int(field) for field in Path("/proc/stat").read_text().splitlines()[0].split()[1:9]]
    return (sum(fields) - fields[3] - fields[4]) / _TICKS


@dataclass
class Usage:
    """The duration of a block, and the CPU used meanwhile."""

    seconds: float = 0.0
    server_cpu_s: float = 0.0
    others_cpu_s: float = 0.0


class Meter:
    """Measures brokers during the block."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids
        self.usage = Usage()

    def __enter__(self) -> Usage:
        self._began = time.perf_counter(), self._server_cpu(), machine_busy_seconds()
        return self.usage

    def __exit__(self, *_: object) -> None:
        seconds, server, busy = self._began
        self.usage.seconds = time.perf_counter() - seconds
        self.usage.server_cpu_s = self._server_cpu() - server
        self.usage.others_cpu_s = machine_busy_seconds() - busy - self.usage.server_cpu_s

    def _server_cpu(self) -> float:
        return sum(map(cpu_seconds, self._pids))


class Workload:
    """A function of `workloads.py`, or of another script, in its own process, where it waits for `go`."""

    def __init__(self, name: str, /, script: str = "workloads.py", **arguments: Any) -> None:
        self._process = subprocess.Popen(
            [sys.executable, str(_HERE / script), name, json.dumps(arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._read()  # ready

    def go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def result(self) -> dict[str, Any]:
        """Wait for its end and return its results."""
        result: dict[str, Any] = json.loads(self._read())
        self._process.wait()
        return result

    def _read(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a workload has failed with status {self._process.wait()}")
        return line


def run(name: str, **arguments: Any) -> dict[str, Any]:
    """Run one workload and return its results."""
    workload = Workload(name, **arguments)
    workload.go()
    return workload.result()
