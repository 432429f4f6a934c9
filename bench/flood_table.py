"""Clients that flood a broker and a name server: the memory of these, and how long others wait meanwhile.

    python bench/flood_table.py [pulls_unread reports ...] [--seconds 6] [--check] [--output json]

For each attack (`flood_attacks.py`, `nameserver_attacks.py`) a server of its own is started, and a canary beside it
(`flood_canary.py`), which times what it does before and during the attack. Memory is that of the process without the
pages of mapped files. Others wait for a server that is flooded, for a processor, and for the canary: on a machine that
does something else meanwhile look at the longest step of the event loop, which is the server's own doing. Before each
attack memory is warmed, and the price of a page is in the table. `--check` makes a part of each attack on a broker, all
on one and beside one canary.
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
#: Memory that a server may have, in MiB, and time that another client may wait, in ms.
MOST_MIB, MOST_MS = 512, 250
#: How often memory is looked at, for how long the canary is alone before, and the server after an attack, in seconds.
LOOK_S, QUIET_S, AFTERWARDS_S = 0.05, 1.0, 2.0
CANARY_TOPIC = "canary"
#: The part of each attack that a check makes, and how long it takes, in seconds.
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
    """The effect of one attack: `calls` are p50, p99 and the most ms by what the canary does, without it if `calm`."""

    attack: str
    server: str
    #: How often something was done to a name server.
    acts: int = 0
    #: Memory before, at most, and a while after the attack.
    before_mib: int = 0
    peak_mib: int = 0
    after_mib: int = 0
    calls: dict[str, tuple[float, float, float]] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)
    #: Messages of the canary that are lost, and masters that were elected.
    lost: int = 0
    failovers: int = 0
    ended: bool = False
    #: Most processor time of a step of the event loop, and of all that was ready in one round of it.
    step_ms: tuple[float, float] = (0.0, 0.0)
    #: Price of a page of memory before the attack, in microseconds.
    page_us: float = 0.0

    @property
    def longest(self) -> tuple[float, str]:
        """The longest p99 under attack, and of what it is."""
        return max(((p99, what) for what, (_, p99, _) in self.calls.items() if what != "calm"), default=(0.0, ""))

    @property
    def faults(self) -> str:
        """The findings that are not as they should be."""
        counts = {"failed": len(self.failures), "lost": self.lost, "fail-overs": self.failovers}
        is_small = self.peak_mib < MOST_MIB and self.longest[0] < MOST_MS
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
            except (OSError, AssertionError):  # it has ended
                return
            self.peak = max(self.peak, self.now)


#: Memory touched before an attack: as much as the clients of the largest attack need, at most a part of what is free.
_WARM_BYTES, _WARM_SHARE = 4 << 30, 0.4
_CHUNK_BYTES = 256 << 20


def warm_memory() -> float:
    """Take memory, touch it and free it again; return what a page costs from then on, in microseconds.

    A virtual machine gives memory that was free for a while back to its host. A page of that costs ten times as much as
    one that was used a moment ago, and a flood that takes gigabytes is then about nothing else.
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


# ---- what is attacked ----------------------------------------------------------------------------


@contextmanager
def broker(patience_s: float) -> Iterator[tuple[ServerProcess, dict[str, Any]]]:
    """A broker, which holds what is pulled and copied by the attacks, and where its canary is to look."""
    with LocalCluster(brokers=1) as cluster:
        [server], topic = cluster.brokers, flood_attacks.TOPIC
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver, compression="none") as producer:
            admin.create_topic(topic, queues=8)
            admin.create_topic(CANARY_TOPIC, queues=1)
            for _ in range(flood_attacks.BATCHES):
                body = b"x" * (flood_attacks.BATCH_BYTES - 1024)
                producer.send(Message(topic, body), queue=MessageQueue(topic, server.broker_name, 0))
        yield server, {"nameserver": cluster.nameserver, "topic": CANARY_TOPIC, "patience_s": patience_s}


@contextmanager
def nameserver(calm: str, lease_s: float, patience_s: float) -> Iterator[tuple[ServerProcess, dict[str, Any]]]:
    """A name server, which is the controller of a replicated broker."""
    with LocalCluster(brokers=1, slaves=1, nameserver_options={"term_lease_s": lease_s}) as cluster:
        [server] = cluster.nameservers
        yield server, {"address": server.address, "calm": calm, "patience_s": patience_s}


def attacked(
    row: Row, server: ServerProcess, seconds: float, scale: float = 1.0, canary: Workload | None = None
) -> Row:
    """Attack a server beside a canary, if there is one, and note what comes of it."""
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
        canary.go()  # to its end
        found = canary.result()
        row.calls, row.failures, row.lost = found["calls"], found["failures"], found["lost"]
        time.sleep(AFTERWARDS_S)
    memory.stop()
    row.before_mib, row.peak_mib, row.after_mib = (each // MIB for each in (memory.before, memory.peak, memory.now))
    row.ended = not server.running
    row.failovers = _terms(server) - terms
    return row


def _terms(server: ServerProcess) -> int:
    """Return how many terms of real brokers began, by the log of a name server."""
    return server.log_path.read_text(errors="replace").count(" decided broker=broker-")


def whole(names: Iterable[str], seconds: float, lease_s: float, patience_s: float) -> Iterator[Row]:
    """Run whole attacks, each on a server of its own."""
    for name in names:
        is_broker = name in flood_attacks.ATTACKS
        row = Row(name, "broker" if is_broker else "nameserver", page_us=warm_memory())
        with ExitStack() as stack:
            steps = Path(stack.enter_context(tempfile.TemporaryDirectory())) / "steps"
            calm = "" if is_broker else stack.enter_context(LocalCluster(brokers=1)).nameserver
            with hook_for_children("loop_steps", LOOP_STEPS=str(steps), LOOP_STEPS_OF=f"minimq_{row.server}"):
                made = broker(patience_s) if is_broker else nameserver(calm, lease_s, patience_s)
                with made as (server, arguments):
                    canary = Workload(row.server, script="flood_canary.py", **arguments)
                    time.sleep(QUIET_S)
                    attacked(row, server, seconds, canary=canary)
            if not row.ended:
                told = json.loads(steps.read_text())
                row.step_ms = told["step"], told["round"]
        yield row


def checked(names: Iterable[str], patience_s: float) -> Iterator[Row]:
    """Run short attacks on one broker, one after the other; the last row is that of the canary."""
    with broker(patience_s) as (server, arguments):
        canary = Workload("broker", script="flood_canary.py", **arguments)
        for name in names:
            yield attacked(Row(name, "broker"), server, CHECK_S, CHECKS.get(name, 1.0))
        yield attacked(Row("heartbeats_unread", "broker"), server, CHECK_S, 0.1, canary)


ATTACKS = (*flood_attacks.ATTACKS, *nameserver_attacks.ATTACKS)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(ATTACKS))
@click.option("--seconds", default=6.0, show_default=True, help="How long an attack takes.")
@click.option("--lease", default=3.0, show_default=True, help="Length of the leases of masters, in seconds.")
@click.option("--patience", default=30.0, show_default=True, help="How long the canary waits, in seconds.")
@click.option("--check", is_flag=True, help="A short part of each attack on a broker: sees that all are held.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: Sequence[str], seconds: float, lease: float, patience: float, *, check: bool, output: str) -> None:
    """Run the attacks NAMES, or all of them."""
    table = Table(
        *("attack", "acts", "MiB before", "peak", "after", "longest p99, ms", "of", "calm p99", "step, ms", "round"),
        *("a page, us", f"below {MOST_MIB} MiB, {MOST_MS} ms"),
    )
    brief = [name for name in flood_attacks.ATTACKS if name in (names or flood_attacks.ATTACKS)]
    for row in checked(brief, patience) if check else whole(names or ATTACKS, seconds, lease, patience):
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
