"""Servers and commands that are copies of a process which has imported their modules: that saves most of a start.

A copy is a process as any other, a child of this one with an id, a group, an environment and standard streams of its
own; only the list of processes shows the command of the template. Whoever sets a variable that is not read by our own
code, such as LD_PRELOAD, gets a process that is started by its command, and so does who asks for `real_commands`.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from minimq.local import server_process

_TEMPLATE = Path(__file__).with_name("server_template.py")
#: Variables that a server reads when it is a copy already, and those that it does not read.
_READ_LATER = ("MINIMQ_", "PYTEST_", "PYSPARK_", "SPARK_", "COLUMNS", "LINES", "TERM")
_SET_CHILD_SUBREAPER = 36
_start_command = server_process.start_command


class ServerCopy:
    """A process that the template has made: what a `ServerProcess` needs of a `Popen`. Thread-safe."""

    def __init__(self, pid: int, stdout: IO[bytes]) -> None:
        self.pid = pid
        self.stdout = stdout
        self.returncode: int | None = None
        self._lock = threading.Lock()

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None:
                ended, status = os.waitpid(self.pid, os.WNOHANG)
                self.returncode = os.waitstatus_to_exitcode(status) if ended else None
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if (code := self.poll()) is None:
            end = os.pidfd_open(self.pid)
            try:
                select.select([end], [], [], timeout)
            finally:
                os.close(end)
            code = self.poll()
        if code is None:
            raise subprocess.TimeoutExpired(f"server {self.pid}", timeout or 0.0)
        return code

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class ServerCopies:
    """Starts servers as copies of a template, which is started with the first one. Thread-safe."""

    def __init__(self, link: socket.socket | None = None) -> None:
        self._owner = os.getpid()
        self._lock = threading.Lock()  # protects all below
        self._template: subprocess.Popen[bytes] | None = None
        self._link = link
        self._environment: Mapping[str, str] = fixed(os.environ) if link else {}

    def start(
        self, command: Sequence[str], environment: Mapping[str, str], log_file: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Start a server; to be in place of `server_process.start_command`."""
        arguments = command[command.index("-m") :]
        reading, writing = os.pipe()
        pid = self.copy(arguments, environment, {1: writing, 2: log_file.fileno()})
        os.close(writing)
        if pid is None:
            os.close(reading)
            return _start_command(command, environment, log_file)
        return ServerCopy(pid, os.fdopen(reading, "rb", 0))  # type: ignore[return-value]

    def copy(self, arguments: Sequence[str], environment: Mapping[str, str], streams: Mapping[int, int]) -> int | None:
        """Start Python with arguments and standard streams; return its id, or None if no copy would be the same."""
        with self._lock:
            if sys.platform != "linux" or os.getpid() != self._owner:  # a fork of it
                return None
            if self._link is None:
                self._link = self._start_template(environment)
            if fixed(environment) != self._environment:
                return None
            request = {
                "arguments": arguments,
                "environment": dict(environment),
                "folder": str(Path.cwd()),
                "streams": list(streams),
            }
            self._adopt(orphans=True)
            try:
                socket.send_fds(self._link, [json.dumps(request).encode()], list(streams.values()))
                return int(self._link.recv(32))
            finally:
                self._adopt(orphans=False)

    def close(self) -> None:
        """End the template; the servers go on."""
        with self._lock:
            if self._link is not None and self._template is not None:
                self._link.close()
                self._template.wait()

    def _start_template(self, environment: Mapping[str, str]) -> socket.socket:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        folders = os.pathsep.join((environment.get("PYTHONPATH", ""), str(_TEMPLATE.parents[1])))
        with theirs:
            self._template = subprocess.Popen(
                [sys.executable, "-P", str(_TEMPLATE), str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env={**environment, "PYTHONPATH": folders},
                process_group=0,  # Ctrl-C is not for the template
            )
        self._environment = fixed(environment)
        return ours

    @staticmethod
    def _adopt(*, orphans: bool) -> None:
        """Let orphans among what this process has started become its children, or those of the system again."""
        ctypes.CDLL(None).prctl(_SET_CHILD_SUBREAPER, int(orphans), 0, 0, 0)


class CommandCopy(subprocess.Popen[bytes]):
    """A command `python -m MODULE` or `python FILE`; a copy, where there are `copies`."""

    copies: ServerCopies | None = None

    def _execute_child(self, args: Sequence[str], *others: Any) -> None:
        *_, env, _startup, _flags, _shell, stdin, _, _, stdout, _, stderr = others[:15]
        pid = None
        if self.copies is not None and args[0] == sys.executable and (args[1] == "-m" or args[1].endswith(".py")):
            streams = (stdin, stdout, stderr)
            own = {number: number if stream < 0 else stream for number, stream in enumerate(streams)}
            pid = self.copies.copy(args[1:] if args[1] == "-m" else ["", *args[1:]], env, own)
        if pid is None:
            super()._execute_child(args, *others)  # type: ignore[misc]
            return
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(*others[9:15])  # type: ignore[attr-defined]


@contextlib.contextmanager
def real_commands() -> Iterator[None]:
    """Start servers by their commands meanwhile, for what looks at the list of processes or at the start itself."""
    former, server_process.start_command = server_process.start_command, _start_command
    try:
        yield
    finally:
        server_process.start_command = former


def fixed(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what a process reads too early to be changed in a copy."""
    fixed = {name: value for name, value in environment.items() if not name.startswith(_READ_LATER)}
    folders = fixed.pop("PYTHONPATH", "").split(os.pathsep)
    return {**fixed, "PYTHONPATH": os.pathsep.join(folder for folder in folders if folder not in sys.path)}
