"""The processes that descend from one."""

from __future__ import annotations

import ctypes
import os
import signal
from collections import defaultdict
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36


@dataclass(frozen=True, slots=True)
class Descendant:
    """A process as it was when it was looked at."""

    pid: int
    parent: int
    started: int
    command: str

    @property
    def lives(self) -> bool:
        """True while it exists and has not ended."""
        fields = _fields(self.pid)
        return fields is not None and fields[0] != "Z" and int(fields[19]) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send it a signal, unless it has ended."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def descendants(root: int) -> list[Descendant]:
    """Return children, their children and so on, parents before their children."""
    children: dict[int, list[Descendant]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        fields = _fields(pid)
        if fields is not None and fields[0] != "Z":
            children[int(fields[1])].append(Descendant(pid, int(fields[1]), int(fields[19]), _command(pid)))
    found = list(children[root])
    for process in found:  # which grows meanwhile
        found += children[process.pid]
    return found


def kill_all(processes: Iterable[Descendant]) -> None:
    """End processes at once."""
    for process in processes:
        process.send(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents end.

    Otherwise the kernel ends those that are stopped at that moment, as nobody in their session is left to let them go.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(processes: Iterable[Descendant]) -> None:
    """Let go of adopted processes that have ended."""
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def _fields(pid: int) -> list[str] | None:
    """Return what /proc tells of a process from its state on; None when there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
