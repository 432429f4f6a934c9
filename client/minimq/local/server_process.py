"""One server as a child process: started, stopped, killed, paused and started again at the same address."""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import logging
import os
import random
import select
import shlex
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import grpc

from minimq.admin.descriptions import ReplicationReport, replication_from_wire
from minimq_common.errors import CannotListen, Closed, InvalidArgument, MinimqError, Unavailable
from minimq_common.security.certificates import Trust
from minimq_common.wire.rpc import open_channel
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

log = logging.getLogger(__name__)

_HOST = "127.0.0.1"
#: Packages that the servers import.
_PACKAGES = ("minimq", "minimq_common", "minimq_proto", "minimq_nameserver", "minimq_broker")
_READY_S = 30.0
_STOP_S = 15.0
#: Interval at which the wait for a start checks whether it was cancelled.
_LOOK_S = 0.2
_TAIL_LINES = 20
_TAIL_BYTES = 64 << 10
_PORT_TRIES = 20
_FIRST_PORT = 10_000
#: Ports are tried in turn: a recently used one may belong to a server that is down for a moment.
_port_numbers = itertools.count(random.randrange(1 << 16))


class ServerProcess:
    """A name server or broker. Thread-safe.

    Its address and its data survive a `restart`.

    Attributes:
        role: "nameserver" or "broker".
        name: such as "broker-a".
        address: HOST:PORT.
        data_dir: where it keeps its data; only used by brokers and by the name server that is the controller.
        log_path: the log of all its runs.
    """

    def __init__(
        self,
        role: str,
        name: str,
        directory: Path,
        *,
        port: int = 0,
        flags: Callable[[str, bool], list[str]],
        settled: Callable[[], None],
    ) -> None:
        self.role = role
        self.name = name
        self.data_dir = directory / name
        self.log_path = directory / f"{name}.log"
        self.address = f"{_HOST}:{port or free_port()}"
        self._may_move = port == 0
        self._flags = flags
        self._settled = settled
        # Protects everything below. Held while the process starts or ends.
        self._lock = threading.RLock()
        self._process: subprocess.Popen[bytes] | None = None
        self._log_start = 0
        self._paused = False
        self._closed = False

    def __repr__(self) -> str:
        state = "paused" if self._paused else f"pid {self.pid}" if self.running else "not running"
        return f"<ServerProcess {self.name} {self.address} {state}>"

    @property
    def pid(self) -> int | None:
        """Id of the process; None while it does not run."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    @property
    def running(self) -> bool:
        """True while the process exists, even when it is paused."""
        return self.pid is not None

    @property
    def end(self) -> str:
        """The end of the latest process, "status 1" or "signal SIGKILL"; empty while it runs, and before the first."""
        process = self._process
        code = None if process is None else process.poll()
        if code is None:
            return ""
        return f"status {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"

    @property
    def paused(self) -> bool:
        """True while the process exists and is stopped by `pause`."""
        return self._paused and self.running

    @property
    def command_line(self) -> str:
        """The command that starts it by hand, quoted for a shell."""
        return shlex.join([f"minimq-{self.role}", *self._flags(self.address, False)])

    def start(self) -> None:
        """Start it unless it runs; return when it serves and brokers are registered.

        Raises:
            MinimqError: it ended before it served (the text has the last lines of its log), or took too long.
            Closed: the cluster was closed.
        """
        with self._lock:
            if self.running:
                return
            self.launch()
            self.wait_ready()
        self._settled()

    def stop(self) -> None:
        """End it cleanly with SIGTERM, and resume it for that if it is paused. Idempotent."""
        with self._lock:
            self.ask_to_stop()
            self.wait_stopped()

    def kill(self) -> None:
        """Kill it with SIGKILL, like a crash. Idempotent."""
        with self._lock:
            if self._process is not None:
                self._process.kill()
                self._process.wait()
                self._close_pipe()
            self._paused = False

    def pause(self) -> None:
        """Stop it with SIGSTOP: it keeps its connections and answers nothing. Does nothing unless it runs.

        Returns once the process has stopped.
        """
        with self._lock:
            self._signal(signal.SIGSTOP)
            self._wait_until_still()
            self._paused = self.running

    def resume(self) -> None:
        """Continue it after `pause`."""
        with self._lock:
            self._signal(signal.SIGCONT)
            self._paused = False

    def restart(self) -> None:
        """Stop it cleanly and start it. Raises as `start` does."""
        with self._lock:
            self.stop()
            self.start()

    # ---- In steps, for a cluster that starts and stops many servers concurrently ----------------

    def launch(self) -> None:
        """Start the process and return at once; call `wait_ready` next."""
        with self._lock:
            if self._closed:
                raise Closed(f"{self.name} belongs to a cluster that was closed")
            command = [sys.executable, "-m", "minimq.local.ends_with_parent", str(os.getpid()), f"minimq_{self.role}"]
            command += self._flags(self.address, self._process is None)
            try:
                with self.log_path.open("ab") as log_file:
                    self._log_start = log_file.tell()
                    self._process = start_command(command, _environment(), log_file)
            except OSError as error:
                raise Unavailable(f"{self.name} cannot be started: {error}") from error
            self._paused = False

    def wait_ready(self, told: threading.Event | None = None) -> None:
        """Wait until the launched process serves. Raises as `start` does, after ending the process."""
        with self._lock:
            process = self._process
            if process is None or process.stdout is None:
                raise Closed(f"{self.name} was not launched")
            try:
                with process.stdout as stdout:
                    line = _read_line(stdout, _READY_S, told)
                if line.split()[:2] == ["ready", self.role]:
                    return
                raise self._failure(process)
            except BaseException:
                self.kill()
                raise

    def move(self) -> bool:
        """Choose another port. Returns False, and keeps the port, if the user has chosen it."""
        with self._lock:
            if self._may_move:
                self.address = f"{_HOST}:{free_port()}"
            return self._may_move

    def ask_to_stop(self) -> None:
        """Ask the process to end and return at once; call `wait_stopped` next."""
        with self._lock:
            self._signal(signal.SIGTERM)
            self._signal(signal.SIGCONT)
            self._paused = False

    def wait_stopped(self) -> None:
        """Wait until the process has ended; one that takes too long is killed."""
        with self._lock:
            if self._process is None:
                return
            try:
                self._process.wait(_STOP_S)
            except subprocess.TimeoutExpired:
                log.warning("killed after %s s name=%s log=%s", _STOP_S, self.name, self.log_path)
                self.kill()
            self._close_pipe()

    def close(self) -> None:
        """Reject any further start."""
        with self._lock:
            self._closed = True

    def log_tail(self) -> str:
        """Return the last lines that the latest run has logged, or the reason why the log cannot be read."""
        try:
            with self.log_path.open("rb") as log_file:
                log_file.seek(max(self._log_start, self.log_path.stat().st_size - _TAIL_BYTES))
                lines = log_file.read().decode(errors="replace").splitlines()
        except OSError as error:
            return f"(it cannot be read: {error})"
        return "\n".join(lines[-_TAIL_LINES:])

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def _wait_until_still(self) -> None:
        """Wait until the process is stopped or has ended."""
        pid = self.pid
        if pid is not None and hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):  # it has ended, and another thread has reaped it
                # WNOWAIT leaves the exit status to Popen.
                os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def _close_pipe(self) -> None:
        if self._process is not None and self._process.stdout is not None:
            self._process.stdout.close()

    def _failure(self, process: subprocess.Popen[bytes]) -> MinimqError:
        try:
            status = process.wait(1.0)
        except subprocess.TimeoutExpired:
            return Unavailable(f"{self.name} was not ready after {_READY_S} s; its log {self.log_path} may say why")
        tail = self.log_tail()
        rejections = [line for line in tail.splitlines() if "cannot listen at" in line]
        if rejections and not self._may_move:  # the user's port is in use: the rest of the log does not matter
            reason = rejections[-1].removeprefix("error: ")
            return CannotListen(f"{self.name} {reason} (--port, or port= of LocalCluster; 0 takes a free one)")
        cls: type[MinimqError] = CannotListen if rejections else Unavailable
        if "Usage:" in tail:
            cls = InvalidArgument
        return cls(f"{self.name} ended with status {status} before it was ready; the end of its log:\n{tail}")


def start_command(
    command: Sequence[str], environment: Mapping[str, str], log_file: IO[bytes]
) -> subprocess.Popen[bytes]:
    """Start a server that logs to a file; the caller reads its stdout."""
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=log_file,
        env=environment,
        # Ctrl-C in a terminal reaches only this process, which ends the servers in order. `ends_with_parent` says why
        # they stay in this session.
        process_group=0,
    )


def _environment() -> dict[str, str]:
    # Not the whole `sys.path`: a module in the program's folder, such as queue.py, would shadow those of servers.
    found = [importlib.util.find_spec(package) for package in _PACKAGES]
    roots = dict.fromkeys(str(Path(spec.origin).parents[1]) for spec in found if spec and spec.origin)
    inherited = filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*roots, *inherited])}


def free_port() -> int:
    """Return a port at which nothing listens now.

    It is not an ephemeral port: while a server is down, the kernel could give such a port to any outgoing connection,
    even to one to this very server, which would then be connected to itself.
    """
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        first_outgoing = 32_768
    count = max(first_outgoing, 20_000) - _FIRST_PORT
    for _ in range(_PORT_TRIES):
        port = _FIRST_PORT + next(_port_numbers) % count
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((_HOST, port))
            except OSError:
                continue
            return port
    raise CannotListen(f"none of {_PORT_TRIES} ports that were tried on {_HOST} is free")


def flags_from(options: Mapping[str, object], reserved: frozenset[str]) -> list[str]:
    """Return the flags for options by the names of their fields: `segment_bytes` is `--segment-bytes`."""
    taken = sorted(reserved & options.keys())
    if taken:
        raise InvalidArgument(f"the cluster itself sets {', '.join(taken)}: leave it out of the options")
    flags = []
    for name, value in options.items():
        flag = name.removesuffix("_s").replace("_", "-")
        if isinstance(value, bool):
            flags.append(f"--{flag}" if value else f"--no-{flag}")
        elif isinstance(value, list | tuple):
            flags.append(f"--{flag}={','.join(map(str, value))}")
        else:
            flags.append(f"--{flag}={value}")
    return flags


def _read_line(pipe: IO[bytes], timeout_s: float, told: threading.Event | None = None) -> str:
    deadline = time.monotonic() + timeout_s
    text = b""
    poll = select.poll()
    poll.register(pipe, select.POLLIN)
    while not text.endswith(b"\n"):
        left_s = max(0.0, deadline - time.monotonic())
        if not poll.poll(min(left_s, _LOOK_S) * 1000):
            if left_s <= _LOOK_S or (told is not None and told.is_set()):
                break
            continue
        data = os.read(pipe.fileno(), 4096)
        if not data:
            break
        text += data
    return text.decode(errors="replace")


_ANSWER_S = 1.0


class BrokerProcess(ServerProcess):
    """A broker. Thread-safe."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        broker_name: str,
        broker_id: int,
        flags: Callable[[str, bool], list[str]],
        settled: Callable[[], None],
        trust: Callable[[], Trust | None] = lambda: None,
    ) -> None:
        self._trust = trust
        super().__init__("broker", name, directory, flags=flags, settled=settled)
        self.broker_name = broker_name
        self.broker_id = broker_id

    def replication(self) -> ReplicationReport | None:
        """Return its report on replication; None if it does not answer."""
        if not self.running or self.paused:
            return None
        with open_channel(self.address, self._trust()) as channel:
            try:
                answer = broker_pb2_grpc.BrokerStub(channel).GetStatus(broker_pb2.GetStatusRequest(), timeout=_ANSWER_S)
            except grpc.RpcError:
                return None
        return replication_from_wire(answer.replication)

    @property
    def current_role(self) -> str:
        """The present role: "alone", "master", "slave", "undecided", or "" when it does not answer."""
        report = self.replication()
        return report.role if report is not None else ""

    @property
    def in_sync(self) -> bool:
        """True if it is alone, or reports itself in the in-sync set."""
        report = self.replication()
        return report is not None and (report.role == "alone" or self.broker_id in report.in_sync)
