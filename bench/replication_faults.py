"""The guarantees and the cost of replication: processes are killed, hang, and are cut off under load.

Afterwards the receipts, the log and the journals of a group are compared, and so are the disks of the replicas.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

import click
from failover_times import FailoverLine, failover, failover_etcd
from kill_runs import KillLine, Plan, kill_run
from network import Network, NoNamespaces
from replica_cluster import network_for
from replica_faults import CUTS, PAUSES
from replica_faults import KILLS as KILL_FAULTS
from replication_cost import CostLine, cost
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import minimq

Line = KillLine | FailoverLine | CostLine
_MAX_REPLICAS = 3

#: Scenarios with faults: number of replicas, and their options.
KILLS: Mapping[str, tuple[int, Mapping[str, object]]] = {
    "kills": (2, {"role": "sync-master", "min_in_sync": 1}),
    "kills-of-three": (3, {"role": "sync-master", "min_in_sync": 2}),
    # Shows that the check can fail: an async master acknowledges messages that no slave has.
    "kills-async": (2, {"role": "async-master"}),
}
OTHERS: Mapping[str, Callable[[Plan, Path], Sequence[Line]]] = {
    "failover": failover,
    "failover-etcd": failover_etcd,
    "cost": cost,
}
ROUNDS = {"kills": 100, "kills-of-three": 100, "kills-async": 20, "failover": 20, "failover-etcd": 20, "cost": 5}


@click.command()
@click.argument("names", nargs=-1, type=click.Choice([*KILLS, *OTHERS]))
@click.option("--rounds", type=int, help="How many faults, or measurements; each scenario has a number of its own.")
@click.option("--rate", default=5_000, show_default=True, help="Messages per second, where there are faults.")
@click.option(
    "--fault",
    type=click.Choice(["", *KILL_FAULTS, *CUTS, *PAUSES]),
    default="",
    help="Only this one, to look at it closely.",
)
@click.option("--seed", type=int, help="Repeats the choices of an earlier run, which printed it.")
@click.option("--keep", type=click.Path(path_type=Path), help="Keep data and logs in this directory.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(
    names: tuple[str, ...], rounds: int | None, rate: int, fault: str, seed: int | None, keep: Path | None, output: str
) -> None:
    """Run the scenarios NAMES, or all of them. Exit status 1 when a synchronous master broke a promise."""
    seed = random.SystemRandom().randrange(1 << 32) if seed is None else seed
    print(f"seed {seed}", file=sys.stderr)
    chosen = names or tuple(ROUNDS)
    network = network_if_possible() if any(name in KILLS for name in chosen) else None
    multiprocessing.set_forkserver_preload(["numbered_load"])
    lines: list[Line] = []
    # Drawn only once per second: drawing takes CPU from the measured processes.
    with Progress(console=Console(stderr=True), refresh_per_second=1, transient=True) as progress:
        for name in chosen:
            plan = Plan(
                rounds=ROUNDS[name] if rounds is None else rounds,
                rate=rate,
                chance=random.Random(f"{seed} {name}"),
                network=network,
                tell=teller(progress, name),
                fault=fault,
            )
            folder = Path(tempfile.mkdtemp(prefix=f"{name}-", dir=keep))
            try:
                lines += run(name, plan, folder)
            finally:
                if keep is None:
                    shutil.rmtree(folder, ignore_errors=True)
    if output == "json":
        print(json.dumps([asdict(line) for line in lines], indent=2))
    else:
        show(lines)
    broken = [line for line in lines if isinstance(line, KillLine) and line.name != "kills-async" and not line.is_sound]
    sys.exit(1 if broken else 0)


def teller(progress: Progress, name: str) -> Callable[[float, str], None]:
    """Return a function that shows the progress of a scenario."""
    task = progress.add_task(name, total=1.0)
    return lambda share, next_: progress.update(task, completed=share, description=f"{name}: {next_}")


def network_if_possible() -> Network | None:
    """Return a network that can be cut, or print why there is none: replicas then hang instead."""
    try:
        return network_for(_MAX_REPLICAS)
    except NoNamespaces as error:
        print(f"no network namespaces, so replicas hang instead of being cut off: {error}", file=sys.stderr)
        return None


def run(name: str, plan: Plan, folder: Path) -> Sequence[Line]:
    """Run one scenario in an empty folder."""
    if name in OTHERS:
        return OTHERS[name](plan, folder)
    count, options = KILLS[name]
    return [kill_run(name, plan, folder, count, options)]


# ---- Tables -----------------------------------------------------------------------------------------


def show(lines: Sequence[Line]) -> None:
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(f"\nminimq in {Path(minimq.__file__).parent}; data in {tempfile.gettempdir()}")
    if kills := [line for line in lines if isinstance(line, KillLine)]:
        show_kills(console, kills)
    if times := [line for line in lines if isinstance(line, FailoverLine)]:
        table = Table("scenario", "times", "median", "worst", title="from kill -9 to the first acknowledged send")
        for time in times:
            table.add_row(time.name, str(len(time.seconds)), f"{time.median_s:.2f} s", f"{time.worst_s:.2f} s")
        console.print(table)
    if costs := [line for line in lines if isinstance(line, CostLine)]:
        table = Table("synchronous slaves", title="cost")
        for title in ("send_many/s", "client CPU", "master CPU", "slave CPU", "send p50", "p99"):
            table.add_column(title)
        for cost_ in costs:
            cpu = (cost_.client_cpu, cost_.master_cpu, cost_.slave_cpu)
            latency = (cost_.p50_ms, cost_.p99_ms)
            table.add_row(
                str(cost_.slaves),
                f"{cost_.per_second:,.0f}",
                *(f"{value:.2f} s/M" for value in cpu),
                *(f"{value:.2f} ms" for value in latency),
            )
        console.print(table)


def show_kills(console: Console, lines: Sequence[KillLine]) -> None:
    log = Table("scenario", "faults", "fail-overs", "median", "worst", "acknowledged", "stored", "failed")
    for title in ("lost", "twice", "reordered"):
        log.add_column(title)
    group = Table(
        "scenario", "unread", "vanished", "back", "below committed", "offsets back", "repeated", "differences"
    )
    for line in lines:
        found = line.verdict
        numbers = (found.acknowledged, found.stored, found.failed, found.lost, found.twice, found.reordered)
        times = (line.failover_median_s, line.failover_worst_s)
        log.add_row(
            line.name,
            ", ".join(f"{count} {kind}" for kind, count in line.faults.items()),
            str(line.failovers),
            *("" if value is None else f"{value:.2f} s" for value in times),
            *(f"{number:,}" for number in numbers),
        )
        read = (found.unread, found.vanished, found.back, found.below_committed, line.offsets_back, found.repeated)
        group.add_row(line.name, *(f"{number:,}" for number in (*read, len(line.differences))))
    console.print(log)
    console.print(group)
    for text in [text for line in lines for text in (*line.verdict.examples, *line.differences[:8])]:
        console.print(text, markup=False, style="red")


if __name__ == "__main__":
    main()
