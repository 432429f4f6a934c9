"""The descendants of a process."""

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
    """A process, with its state at the time of the listing."""

    pid: int
    parent: int
    started: int
    command: str

    @property
    def lives(self) -> bool:
        """True while it runs; False for a zombie, or if its pid was reused."""
        fields = stat_fields(self.pid)
        return fields is not None and fields[0] != "Z" and int(fields[19]) == self.started

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless the process has ended."""
        if self.lives:
            with suppress(ProcessLookupError):
                os.kill(self.pid, number)


def descendants(root: int) -> list[Descendant]:
    """Return all descendants, parents before their children."""
    children: dict[int, list[Descendant]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        fields = stat_fields(pid)
        if fields is not None and fields[0] != "Z":
            children[int(fields[1])].append(Descendant(pid, int(fields[1]), int(fields[19]), _command(pid)))
    found = list(children[root])
    for process in found:  # the list grows meanwhile
        found += children[process.pid]
    return found


def kill_all(processes: Iterable[Descendant]) -> None:
    for process in processes:
        process.send(signal.SIGKILL)


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parents end.

    Otherwise the kernel would end those that are stopped: their process group would be orphaned.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def reap(processes: Iterable[Descendant]) -> None:
    """Reap adopted processes that have ended."""
    for process in processes:
        with suppress(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)


def stat_fields(pid: int) -> list[str] | None:
    """Return the fields of /proc/PID/stat from the state on; None if there is no such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


def _command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
