"""A name server under floods: its memory, and how long others wait meanwhile.

A cluster with a replicated broker runs, whose name server is its controller. Beside it a canary, a process of its own,
looks a route up, sends the heartbeat of a broker and renews the lease of a master, again and again, and times each. It
looks a route up at a second name server as well, which nobody attacks: so long the machine and the canary itself take,
which the attacked name server is not to blame for. What is its own doing is the processor time of the longest step of
its event loop, and of the longest round. Attackers that go at a pace of their own leave the processors to others.
"""

from __future__ import annotations

import json
import multiprocessing
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import click
import grpc
from hooks import hook_for_children
from nameserver_attacks import ATTACKS
from processes import anonymous_bytes
from rich.console import Console
from rich.table import Table

from minimq import LocalCluster
from minimq.local.server_process import ServerProcess
from minimq_common.wire import rpc
from minimq_proto.v1 import controller_pb2, controller_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc

#: How often the canary does each of its calls.
EVERY_S = 0.02
_HERE = Path(__file__).parent


@dataclass
class Line:
    """The effect of one attack.

    Attributes:
        attack: its name.
        acts: how often something was done to the name server.
        memory_mb: most anonymous memory of the name server.
        calls: by what the canary does, the p50, p99 and most in ms.
        failures: calls of the canary that failed.
        failovers: masters that were elected meanwhile.
        step_ms: most processor time that a step of the event loop took, and all that was ready in one round of it.
    """

    attack: str
    acts: int = 0
    memory_mb: float = 0.0
    calls: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    failovers: int = 0
    step_ms: tuple[float, float] = (0.0, 0.0)


# ---- The canary --------------------------------------------------------------------------------


class _Canary:
    """A broker of its own, and a client of it."""

    def __init__(self, address: str, patience_s: float) -> None:
        self._patience_s = patience_s
        self._channels = [rpc.open_channel(address) for _ in range(3)]
        self._names = nameserver_pb2_grpc.NameServerStub(self._channels[0])
        self._controller = controller_pb2_grpc.ControllerStub(self._channels[1])
        self._requests: Any = _Requests()
        self._answers = nameserver_pb2_grpc.NameServerStub(self._channels[2]).Register(self._requests)
        table = nameserver_pb2.RegisterRequest(
            cluster="default", broker_name="canary", address="canary:1", data_version=1, permission=6
        )
        table.topics.add(topic="canary", read_queues=4, write_queues=4, permission=6)
        self._tell(table)
        self._known: controller_pb2.ReplicaSet | None = None
        self._heartbeat = nameserver_pb2.RegisterRequest(broker_name="canary", data_version=1, heartbeat_only=True)

    def look_up(self) -> None:
        answer = self._names.GetRoute(nameserver_pb2.GetRouteRequest(topic="canary"), timeout=self._patience_s)
        assert answer.route.queues

    def beat(self) -> None:
        self._tell(self._heartbeat)

    def renew(self) -> None:
        request = controller_pb2.ReportRequest(
            cluster="default",
            broker_name="canary",
            replica_id=1,
            run=1,
            address="canary:1",
            founds=True,
            min_in_sync=1,
            last_term=1 if self._known else 0,
            known=self._known,
        )
        record = self._controller.Report(request, timeout=self._patience_s).replica_set
        assert record.term == 1, f"the lease of the canary was over: {record}"
        self._known = record

    def close(self) -> None:
        self._requests.end()
        for channel in self._channels:
            channel.close()

    def _tell(self, request: nameserver_pb2.RegisterRequest) -> None:
        self._requests.put(request)
        next(self._answers)


class _Requests:
    """The requests to send over a stream."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: list[nameserver_pb2.RegisterRequest | None] = []

    def put(self, request: nameserver_pb2.RegisterRequest | None) -> None:
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()

    def end(self) -> None:
        self.put(None)

    def __iter__(self) -> _Requests:
        return self

    def __next__(self) -> nameserver_pb2.RegisterRequest:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            request = self._waiting.pop(0)
        if request is None:
            raise StopIteration
        return request


def sing(pipe: Connection, address: str, calm_address: str, patience_s: float) -> None:
    """Be the canary: begin at once, begin to count when told so, answer what was measured when told to end."""
    canary, calm = _Canary(address, patience_s), _Canary(calm_address, patience_s)
    acts = {"look-up": canary.look_up, "heartbeat": canary.beat, "lease": canary.renew, "calm": calm.look_up}
    took: dict[str, list[float]] = {name: [] for name in acts}
    failures: list[str] = []
    over = threading.Event()

    def repeat(name: str, act: Callable[[], None]) -> None:
        due = time.monotonic()
        while not over.is_set():
            began = time.perf_counter()
            try:
                act()
            except (grpc.RpcError, AssertionError, StopIteration) as error:
                failures.append(f"{name}: {error}"[:200])
                time.sleep(0.1)
            took[name].append((time.perf_counter() - began) * 1000)
            due = max(due + EVERY_S, time.monotonic())
            over.wait(due - time.monotonic())

    threads = [threading.Thread(target=repeat, args=item, daemon=True) for item in acts.items()]
    for thread in threads:
        thread.start()
    pipe.send("ready")
    pipe.recv()
    for latencies in took.values():
        latencies.clear()
    pipe.recv()
    over.set()
    for thread in threads:
        thread.join(patience_s)
    pipe.send((took, failures))
    canary.close()
    calm.close()


# ---- The scenario ------------------------------------------------------------------------------


class _Memory:
    """Looks at the memory of a process until it is told to end."""

    def __init__(self, pid: int) -> None:
        self.most = 0
        self._pid = pid
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(0.02):
            try:
                self.most = max(self.most, anonymous_bytes(self._pid))
            except (OSError, AssertionError):
                return  # the process is no more


def attacked(name: str, seconds: float, lease_s: float, patience_s: float) -> Line:
    """Attack a cluster of its own, and return what came of it."""
    line = Line(name)
    with tempfile.TemporaryDirectory() as directory:
        steps = Path(directory) / "steps"
        with (
            _calm_nameserver() as calm_address,
            hook_for_children("loop_steps", LOOP_STEPS=str(steps), LOOP_STEPS_OF="minimq_nameserver"),
            LocalCluster(brokers=1, slaves=1, nameserver_options={"term_lease_s": lease_s}) as cluster,
        ):
            _attack(line, cluster.nameservers[0], calm_address, seconds, patience_s)
        told = json.loads(steps.read_text())
        line.step_ms = told["step"], told["round"]
    return line


def _attack(line: Line, nameserver: ServerProcess, calm_address: str, seconds: float, patience_s: float) -> None:
    assert nameserver.pid is not None
    context = multiprocessing.get_context("spawn")  # gRPC does not outlive a fork
    pipe, theirs = context.Pipe()
    canary = context.Process(target=sing, args=(theirs, nameserver.address, calm_address, patience_s), daemon=True)
    canary.start()
    pipe.recv()
    terms = _terms(nameserver.log_path)
    memory = _Memory(nameserver.pid)
    command = [sys.executable, str(_HERE / "nameserver_attacks.py"), line.attack, nameserver.address, str(seconds)]
    attack = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    time.sleep(min(1.5, seconds / 4))  # until the process is there
    pipe.send("go")
    try:
        line.acts = int(attack.communicate(timeout=seconds + 60)[0] or 0)
    except subprocess.TimeoutExpired:
        attack.kill()
        attack.communicate()
    pipe.send("end")
    if pipe.poll(4 * patience_s):
        took, line.failures = pipe.recv()
        line.calls = {what: _figures(latencies) for what, latencies in took.items()}
    else:
        line.failures = ["the canary did not come to an end"]
    canary.kill()
    canary.join()
    memory.end()
    if nameserver.pid is None:
        line.failures.append("the name server is no more")
    line.memory_mb = memory.most / 1e6
    line.failovers = _terms(nameserver.log_path) - terms


@contextmanager
def _calm_nameserver() -> Iterator[str]:
    """Run a name server that nobody attacks; its address."""
    command = [sys.executable, "-m", "minimq_nameserver", "--listen", "127.0.0.1:0", "--log-level", "error"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield process.stdout.readline().split()[-1]
    finally:
        process.terminate()
        process.wait()


def _figures(latencies: list[float]) -> tuple[float, float, float]:
    """Return p50, p99 and the most of what calls took that were due at a steady rate.

    While one takes long, the next are not made: they count as if they had been made when they were due.
    """
    every_ms = EVERY_S * 1000
    took = sorted(ms - number * every_ms for ms in latencies for number in range(1 + int(ms // every_ms)))
    if not took:
        return (float("inf"),) * 3
    return took[len(took) // 2], took[int(len(took) * 0.99)], took[-1]


def _terms(log: Path) -> int:
    """Return how many terms of real brokers began, by the log of the name server."""
    return sum(1 for line in log.read_text(errors="replace").splitlines() if " decided broker=broker-" in line)


@click.command()
@click.argument("attacks", nargs=-1, type=click.Choice(sorted(ATTACKS)))
@click.option("--seconds", default=8.0, show_default=True, help="How long each attack takes.")
@click.option("--lease", default=3.0, show_default=True, help="Length of the leases of masters, in seconds.")
@click.option(
    "--patience", default=10.0, show_default=True, help="How long the canary waits for an answer, in seconds."
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(attacks: tuple[str, ...], seconds: float, lease: float, patience: float, output: str) -> None:
    """Attack a name server, in each of the ways that are named; all unless given."""
    console = Console(width=None if sys.stdout.isatty() else 190)
    lines = []
    for name in attacks or tuple(ATTACKS):
        lines.append(attacked(name, seconds, lease, patience))
        if output == "table":
            print(name, asdict(lines[-1]), file=sys.stderr, flush=True)
    if output == "json":
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return
    table = Table(
        *("attack", "acts", "memory", "look-up p50, p99, max", "heartbeat", "lease", "at a calm one"),
        *("longest step, round", "failed", "fail-overs"),
    )
    for line in lines:
        table.add_row(
            line.attack,
            f"{line.acts:,}",
            f"{line.memory_mb:,.0f} MB",
            *(" ".join(f"{ms:,.1f}" for ms in figures) for figures in line.calls.values()),
            " ".join(f"{ms:,.1f}" for ms in line.step_ms),
            str(len(line.failures)),
            str(line.failovers),
        )
    console.print(table)


if __name__ == "__main__":
    main()
