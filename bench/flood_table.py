"""Clients that flood a broker or a name server: memory of the server, and latencies of other clients.

    python bench/flood_table.py [pulls_unread reports ...] [--seconds 6] [--check] [--output json]

Each attack (`flood_attacks.py`, `nameserver_attacks.py`) has its own server and its own canary (`flood_canary.py`),
which measures latencies before and during the attack. Memory is that of the process without the pages of mapped files.
Latencies include waits for the server, for a processor, and for the canary itself: on a busy machine, use the longest
step of the event loop instead, which only depends on the server. Memory is warmed before each attack; the table has the
cost of a page. `--check` runs short versions of the attacks on a broker, all on one broker with one canary.
"""

from __future__ import annotations

import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import click
import flood_attacks
import nameserver_attacks
from hooks import hook_for_children
from processes import Workload, anonymous_bytes
from rich.console import Console
from rich.table import Table

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer
from minimq.local.server_process import ServerProcess

HERE = Path(__file__).parent
MIB = 1 << 20
#: Limits of a server's memory in MiB, and of another client's p99 in ms.
MAX_MIB, MAX_MS = 512, 250
#: Interval of memory samples, and quiet time before and after an attack, in seconds.
LOOK_S, QUIET_S, AFTERWARDS_S = 0.05, 1.0, 2.0
CANARY_TOPIC = "canary"
#: Scale of each attack in a check, and its duration in seconds.
CHECKS = {
    "pulls_unread": 0.4,
    "snapshots_unread": 0.2,
    "appends_half_sent": 0.3,
    "appends_whole": 0.4,
    "connections_half_sent": 0.4,
    "commits_half_sent": 0.3,
    "joins_of_nothing": 0.3,
    "topics_of_long_names": 0.25,
    "topics_of_rather_long_names": 0.5,
    "long_filters": 0.5,
    "long_client_ids": 0.3,
    "members_that_claim": 0.05,
    "million_queues": 0.5,
    "million_offsets": 0.2,
    "silent_streams": 0.3,
}
CHECK_S = 1.0


@dataclass
class Row:
    """The effect of one attack: `calls` has p50, p99 and maximum in ms of the canary's calls, `calm` without attack."""

    attack: str
    server: str
    #: Number of calls of an attack on a name server.
    acts: int = 0
    #: Memory before the attack, at its peak, and some time after it.
    before_mib: int = 0
    peak_mib: int = 0
    after_mib: int = 0
    calls: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    #: Lost messages of the canary, and elections of masters.
    lost: int = 0
    failovers: int = 0
    ended: bool = False
    #: Longest processor time of a step of the event loop, and of one iteration of it.
    step_ms: tuple[float, float] = (0.0, 0.0)
    #: Cost of a page of memory before the attack, in microseconds.
    page_us: float = 0.0

    @property
    def longest(self) -> tuple[float, str]:
        """The longest p99 under attack, and the call that it belongs to."""
        return max(((p99, what) for what, (_, p99, _) in self.calls.items() if what != "calm"), default=(0.0, ""))

    @property
    def faults(self) -> str:
        """All violations, as text; empty if there are none."""
        counts = {"failed": len(self.failures), "lost": self.lost, "fail-overs": self.failovers}
        is_small = self.peak_mib < MAX_MIB and self.longest[0] < MAX_MS
        found = [*(() if is_small else ("no",)), *(f"{count} {what}" for what, count in counts.items() if count)]
        return ", ".join([*found, *(["the server ended"] if self.ended else [])])


class Memory:
    """Samples the memory of a process."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._over = threading.Event()
        self.before = self.peak = self.now = anonymous_bytes(pid)
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._over.wait(LOOK_S):
            try:
                self.now = anonymous_bytes(self._pid)
            except (OSError, AssertionError):  # the process has ended
                return
            self.peak = max(self.peak, self.now)


#: Memory touched before an attack: as much as the largest attack's clients need, but at most this share of free memory.
_WARM_BYTES, _WARM_SHARE = 4 << 30, 0.4
_CHUNK_BYTES = 256 << 20


def warm_memory() -> float:
    """Allocate memory, touch it and free it again; return the cost of a page after that, in microseconds.

    A virtual machine returns memory that was free for a while to its host. Such a page costs ten times as much as a
    recently used one, which would dominate an attack that takes gigabytes.
    """
    left = os.sysconf("SC_AVPHYS_PAGES") * mmap.PAGESIZE
    taken = [_touched() for _ in range(int(min(_WARM_BYTES, left * _WARM_SHARE) // _CHUNK_BYTES))]
    for memory in taken:
        memory.close()
    began = time.perf_counter()
    _touched().close()
    return (time.perf_counter() - began) * 1e6 / (_CHUNK_BYTES // mmap.PAGESIZE)


def _touched() -> mmap.mmap:
    memory = mmap.mmap(-1, _CHUNK_BYTES, mmap.MAP_PRIVATE)
    memory[:: mmap.PAGESIZE] = b"x" * (_CHUNK_BYTES // mmap.PAGESIZE)
    return memory


# ---- Servers under attack ------------------------------------------------------------------------


@contextmanager
def broker(max_wait_s: float) -> Iterator[tuple[ServerProcess, dict[str, Any]]]:
    """Run a broker with the batches that attacks pull and copy; yields it, and the arguments of its canary."""
    with LocalCluster(brokers=1) as cluster:
        [server], topic = cluster.brokers, flood_attacks.TOPIC
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver, compression="none") as producer:
            admin.create_topic(topic, queues=8)
            admin.create_topic(CANARY_TOPIC, queues=1)
            for _ in range(flood_attacks.BATCHES):
                body = b"x" * (flood_attacks.BATCH_BYTES - 1024)
                producer.send(Message(topic, body), queue=MessageQueue(topic, server.broker_name, 0))
        yield server, {"nameserver": cluster.nameserver, "topic": CANARY_TOPIC, "max_wait_s": max_wait_s}


@contextmanager
def nameserver(calm: str, lease_s: float, max_wait_s: float) -> Iterator[tuple[ServerProcess, dict[str, Any]]]:
    """Run a name server that is the controller of a replicated broker; yields it, and the arguments of its canary."""
    with LocalCluster(brokers=1, slaves=1, nameserver_options={"term_lease_s": lease_s}) as cluster:
        [server] = cluster.nameservers
        yield server, {"address": server.address, "calm": calm, "max_wait_s": max_wait_s}


def attacked(
    row: Row, server: ServerProcess, seconds: float, scale: float = 1.0, canary: Workload | None = None
) -> Row:
    """Attack a server, with a canary if there is one, and fill in the row."""
    assert server.pid is not None
    memory, terms = Memory(server.pid), _terms(server)
    script = "flood_attacks.py" if row.server == "broker" else "nameserver_attacks.py"
    command = [sys.executable, str(HERE / script), row.attack, server.address, str(seconds), str(scale)]
    attack = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    if canary is not None:
        canary.go()
    try:
        row.acts = int(attack.communicate(timeout=seconds * 2 + 60)[0] or 0)
    except subprocess.TimeoutExpired:
        print(f"{row.attack}: the attacker was ended", file=sys.stderr)
        attack.kill()
        attack.communicate()
    if canary is not None:
        canary.go()  # ends its measurement
        found = canary.result()
        row.calls, row.failures, row.lost = found["calls"], found["failures"], found["lost"]
        time.sleep(AFTERWARDS_S)
    memory.stop()
    row.before_mib, row.peak_mib, row.after_mib = (each // MIB for each in (memory.before, memory.peak, memory.now))
    row.ended = not server.running
    row.failovers = _terms(server) - terms
    return row


def _terms(server: ServerProcess) -> int:
    """Return the number of terms of real brokers, from the log of a name server."""
    return server.log_path.read_text(errors="replace").count(" decided broker=broker-")


def whole(names: Iterable[str], seconds: float, lease_s: float, max_wait_s: float) -> Iterator[Row]:
    """Run full attacks, each on its own server."""
    for name in names:
        is_broker = name in flood_attacks.ATTACKS
        row = Row(name, "broker" if is_broker else "nameserver", page_us=warm_memory())
        with ExitStack() as stack:
            steps = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "steps"
            calm = "" if is_broker else stack.enter_context(LocalCluster(brokers=1)).nameserver
            with hook_for_children("loop_steps", LOOP_STEPS=str(steps), LOOP_STEPS_OF=f"minimq_{row.server}"):
                made = broker(max_wait_s) if is_broker else nameserver(calm, lease_s, max_wait_s)
                with made as (server, arguments):
                    canary = Workload(row.server, script="flood_canary.py", **arguments)
                    time.sleep(QUIET_S)
                    attacked(row, server, seconds, canary=canary)
            if not row.ended:
                told = json.loads(steps.read_text())
                row.step_ms = told["step"], told["round"]
        yield row


def checked(names: Iterable[str], max_wait_s: float) -> Iterator[Row]:
    """Run short attacks on one broker, one after the other; the last row has the canary."""
    with broker(max_wait_s) as (server, arguments):
        canary = Workload("broker", script="flood_canary.py", **arguments)
        for name in names:
            yield attacked(Row(name, "broker"), server, CHECK_S, CHECKS.get(name, 1.0))
        yield attacked(Row("heartbeats_unread", "broker"), server, CHECK_S, 0.1, canary)


ATTACKS = (*flood_attacks.ATTACKS, *nameserver_attacks.ATTACKS)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(ATTACKS))
@click.option("--seconds", default=6.0, show_default=True, help="How long an attack takes.")
@click.option("--lease", default=3.0, show_default=True, help="Length of the leases of masters, in seconds.")
@click.option("--max-wait", default=30.0, show_default=True, help="How long the canary waits, in seconds.")
@click.option("--check", is_flag=True, help="A short part of each attack on a broker: sees that all are held.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: Sequence[str], seconds: float, lease: float, max_wait: float, *, check: bool, output: str) -> None:
    """Run the attacks NAMES, or all of them."""
    table = Table(
        *("attack", "acts", "MiB before", "peak", "after", "longest p99, ms", "of", "calm p99", "step, ms", "round"),
        *("a page, us", f"below {MAX_MIB} MiB, {MAX_MS} ms"),
    )
    brief = [name for name in flood_attacks.ATTACKS if name in (names or flood_attacks.ATTACKS)]
    for row in checked(brief, max_wait) if check else whole(names or ATTACKS, seconds, lease, max_wait):
        if output == "json":
            print(json.dumps(asdict(row)), flush=True)
            continue
        print(asdict(row), file=sys.stderr, flush=True)  # a run takes minutes
        (p99, what), calm = row.longest, row.calls.get("calm", (0.0, 0.0, 0.0))[1]
        table.add_row(
            *(row.attack, f"{row.acts:,}", *map(str, (row.before_mib, row.peak_mib, row.after_mib))),
            *(f"{p99:.0f}", what, f"{calm:.0f}", *(f"{ms:.0f}" for ms in row.step_ms)),
            *(f"{row.page_us:.1f}", row.faults or "yes"),
        )
    if output == "table":
        Console(width=None if sys.stdout.isatty() else 190).print(table)


if __name__ == "__main__":
    main()
