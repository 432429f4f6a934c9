"""Clients that flood a broker, and what becomes of its memory and of another client: real processes on this machine.

    python bench/floods.py [pulls_unread ...] [--seconds 20] [--check] [--output json]

For each attack a broker is started and filled, and a canary (`flood_canary.py`) sends and receives twenty messages a
second before and during the attack (`flood_attacks.py`). Memory is that of the broker's process without the pages of
mapped files, looked at twenty times a second. `--check` makes a part of each attack, which would cost half a gigabyte
and more in most of them, on one broker and beside one canary.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, ClassVar

import click
from flood_attacks import ATTACKS, BATCH_BYTES, BATCHES, TOPIC
from hooks import hook_for_children
from processes import anonymous_bytes
from rich.console import Console
from rich.table import Table

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer

HERE = Path(__file__).parent
MIB = 1 << 20
#: How often memory is looked at, in seconds.
LOOK_S = 0.05
#: After the attack the broker is watched for so long, in seconds.
AFTERWARDS_S = 2.0
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
    """The effect of one attack. Memory in MiB, times in ms as `flood_canary.py` tells them.

    Attributes:
        before_mib, peak_mib, after_mib: memory before, at most, and a while after the attack.
        broker_ended: the broker is gone.
        step_ms: most processor time that a step of its event loop took, in a whole attack.
    """

    name: str
    before_mib: int
    peak_mib: int
    after_mib: int
    quiet_send_p99_ms: float
    send_p50_ms: float
    send_p99_ms: float
    receive_p50_ms: float
    receive_p99_ms: float
    sent: int
    failed: int
    lost: int
    broker_ended: bool
    step_ms: float = 0.0

    @property
    def p99_ms(self) -> float:
        """The longer one of sending and receiving."""
        return max(self.send_p99_ms, self.receive_p99_ms)


class Memory:
    """Looks at the memory of a process all the time."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._ended = threading.Event()
        self.peak = self.now = anonymous_bytes(pid)
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def stop(self) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.wait(LOOK_S):
            try:
                self.now = anonymous_bytes(self._pid)
            except (OSError, AssertionError):  # it has ended
                return
            self.peak = max(self.peak, self.now)


class Canary:
    """The canary as a process."""

    #: What it measured when there was none.
    NOTHING: ClassVar[dict[str, float]] = dict.fromkeys(
        ("send_p50_ms", "send_p99_ms", "receive_p50_ms", "receive_p99_ms", "sent", "failed", "lost"), 0.0
    )

    def __init__(self, nameserver: str) -> None:
        command = [sys.executable, str(HERE / "flood_canary.py"), nameserver, CANARY_TOPIC]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        assert self._process.stdin is not None
        self._out: IO[str] = self._process.stdout
        self._in: IO[str] = self._process.stdin
        if self._out.readline() != "ready\n":
            raise SystemExit("the canary did not start")

    def end(self) -> dict[str, float]:
        """Return what it measured."""
        self._in.write("end\n")
        self._in.flush()
        found: dict[str, float] = json.loads(self._out.readline())
        self._process.wait()
        return found


@contextmanager
def filled() -> Iterator[LocalCluster]:
    """One broker, which holds what is pulled and copied by the attacks."""
    with LocalCluster(brokers=1) as cluster:
        fill(cluster.nameserver, cluster.brokers[0].broker_name)
        yield cluster


def flood(cluster: LocalCluster, name: str, *, seconds: float, quiet_s: float) -> Row:
    """Run one attack on the broker of a cluster, beside a canary."""
    quiet = Canary(cluster.nameserver)
    time.sleep(quiet_s)
    quiet_p99 = quiet.end()["send_p99_ms"]
    return attacked(cluster, name, 1.0, seconds, quiet_p99, Canary(cluster.nameserver))


def attacked(
    cluster: LocalCluster,
    name: str,
    scale: float,
    seconds: float,
    quiet_p99_ms: float = 0.0,
    canary: Canary | None = None,
) -> Row:
    """Run one attack on the broker of a cluster, and look at its memory, and at the canary if there is one."""
    [broker] = cluster.brokers
    assert broker.pid is not None
    before = anonymous_bytes(broker.pid)
    memory = Memory(broker.pid)
    command = [sys.executable, str(HERE / "flood_attacks.py"), name, broker.address, str(scale), str(seconds)]
    attack = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    try:
        attack.wait(seconds * 2 + 60)
    except subprocess.TimeoutExpired:
        print(f"{name}: the attacker was ended", file=sys.stderr)
    finally:
        attack.kill()
        attack.wait()
    found = Canary.NOTHING
    if canary is not None:
        found = canary.end()
        time.sleep(AFTERWARDS_S)
    memory.stop()
    return Row(
        name,
        before // MIB,
        memory.peak // MIB,
        memory.now // MIB,
        quiet_p99_ms,
        found["send_p50_ms"],
        found["send_p99_ms"],
        found["receive_p50_ms"],
        found["receive_p99_ms"],
        int(found["sent"]),
        int(found["failed"]),
        int(found["lost"]),
        broker_ended=not broker.running,
    )


def fill(nameserver: str, broker_name: str) -> None:
    """Store what is pulled and copied by the attacks."""
    with Admin(nameserver) as admin, Producer(nameserver, compression="none") as producer:
        admin.create_topic(TOPIC, queues=8)
        admin.create_topic(CANARY_TOPIC, queues=1)
        for _ in range(BATCHES):
            producer.send(Message(TOPIC, b"x" * (BATCH_BYTES - 1024)), queue=MessageQueue(TOPIC, broker_name, 0))


def whole(names: Iterable[str], seconds: float, quiet_s: float = 5.0) -> Iterator[Row]:
    """Run whole attacks, each on a broker of its own."""
    for name in names:
        with tempfile.TemporaryDirectory() as directory:
            steps = Path(directory) / "steps"
            hook = hook_for_children("loop_steps", LOOP_STEPS=str(steps), LOOP_STEPS_OF="minimq_broker")
            with hook, filled() as cluster:
                row = flood(cluster, name, seconds=seconds, quiet_s=quiet_s)
            if not row.broker_ended:
                row.step_ms = json.loads(steps.read_text())["step"]
        yield row


def checked(names: Iterable[str]) -> Iterator[Row]:
    """Run short attacks on one broker, one after the other; the last row is that of the canary."""
    with filled() as cluster:
        canary = Canary(cluster.nameserver)
        for name in names:
            yield attacked(cluster, name, CHECKS.get(name, 1.0), CHECK_S)
        yield attacked(cluster, "heartbeats_unread", 0.1, CHECK_S, canary=canary)


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(ATTACKS)))
@click.option("--seconds", default=20.0, show_default=True, help="How long an attack takes.")
@click.option(
    "--check",
    is_flag=True,
    help="A short part of each attack: sees that all are held.",
)
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(names: tuple[str, ...], seconds: float, *, check: bool, output: str) -> None:
    """Run the attacks NAMES, or all of them."""
    rows = []
    for row in checked(names or ATTACKS) if check else whole(names or ATTACKS, seconds):
        rows.append(row)
        if output == "json":
            print(json.dumps(asdict(row)), flush=True)
    if output == "json":
        return
    columns = ("attack", "before", "peak", "after", "quiet p99", "send p50", "p99", "receive p50", "p99", "step")
    table = Table(*columns, "served")
    for row in rows:
        served = f"{row.sent - row.lost} of {row.sent + row.failed}{', broker ended' if row.broker_ended else ''}"
        memory = (f"{row.before_mib} MiB", f"{row.peak_mib} MiB", f"{row.after_mib} MiB")
        times = (
            row.quiet_send_p99_ms,
            row.send_p50_ms,
            row.send_p99_ms,
            row.receive_p50_ms,
            row.receive_p99_ms,
            row.step_ms,
        )
        table.add_row(row.name, *memory, *(f"{each:.0f} ms" for each in times), served)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
