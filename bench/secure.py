"""The price of TLS and of rules: the same work in a plain cluster, and by two users of a secured one.

Both users go by rules: what the one with many takes more than the administrator is the price of their number.
TLS without keys and rules is not measured. Each round has all three, so that they meet the same machine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median

import click
from processes import Meter, run
from rich.console import Console
from rich.table import Table

from minimq import Admin, LocalCluster

VARIABLE = "MINIMQ_CREDENTIALS"
TOPIC = "bench"
#: Rules of the user with rules, besides those that the work needs.
OTHER_RULES = 100

#: Messages a second, and CPU-seconds per million messages of client and broker.
Figures = tuple[float, float, float]


@contextmanager
def credentials_of(path: str) -> Iterator[None]:
    """Let clients that begin in this block use credentials; an empty path means none."""
    former = os.environ.get(VARIABLE)
    os.environ[VARIABLE] = path
    try:
        yield
    finally:
        del os.environ[VARIABLE]
        if former is not None:
            os.environ[VARIABLE] = former


def ruled_user(cluster: LocalCluster) -> str:
    """Add a user with rules; return the path of its credentials."""
    path = cluster.data_dir / "ruled.minimq"
    rights = ["--write", TOPIC, "--read", TOPIC, "--group", "reader"]
    for number in range(OTHER_RULES):
        rights += ["--read", f"other-{number}"]
    command = [sys.executable, "-m", "minimq", "--credentials", str(cluster.credentials)]
    subprocess.run([*command, "user", "add", "ruled", *rights, "--to", str(path)], check=True)
    return str(path)


def measure(secure: bool, ruled: bool, workload: str, count: int, size: int) -> Figures:
    """Run one workload in a cluster of its own."""
    with ExitStack() as stack:
        stack.enter_context(credentials_of(""))
        cluster = stack.enter_context(LocalCluster(brokers=1, secure=secure))
        with Admin(cluster.nameserver, credentials=cluster.credentials if secure else None) as admin:
            admin.create_topic(TOPIC, queues=8)
        user = ruled_user(cluster) if ruled else str(cluster.credentials) if secure else ""
        stack.enter_context(credentials_of(user))
        place: dict[str, object] = {"nameserver": cluster.nameserver, "topic": TOPIC, "count": count}
        if workload == "consume":
            run("produce", **place, size=size)
            place["group"] = "reader"
        elif workload == "produce":
            place["size"] = size
        with Meter([broker.pid for broker in cluster.brokers if broker.pid is not None]) as usage:
            result = run(workload, **place)
        done = result["count"]
        return done / result["seconds"], result["cpu_s"] / done * 1e6, usage.server_cpu_s / done * 1e6


KINDS = {"plain": (False, False), "TLS, administrator": (True, False), "TLS, user with rules": (True, True)}


@click.command()
@click.option("--rounds", default=3, show_default=True, help="How often; medians are shown.")
@click.option("--small", default=3_000_000, show_default=True, help="Messages of 100 B.")
@click.option("--large", default=600_000, show_default=True, help="Messages of 1 KiB.")
@click.option("--sends", default=5_000, show_default=True, help="Lone sends.")
def main(rounds: int, small: int, large: int, sends: int) -> None:
    """Compare a plain cluster with a secured one."""
    table = Table("work", "cluster", "messages/s", "of plain", "client CPU", "broker CPU")
    works = (
        ("produce 100 B", "produce", small, 100),
        ("consume 100 B", "consume", small, 100),
        ("produce 1 KiB", "produce", large, 1024),
        ("consume 1 KiB", "consume", large, 1024),
        ("one send", "send_one_by_one", sends, 100),
    )
    for name, workload, count, size in works:
        tries = [{kind: measure(*how, workload, count, size) for kind, how in KINDS.items()} for _ in range(rounds)]
        plain = median(each["plain"][0] for each in tries)
        for kind in KINDS:
            rate, client, broker = (median(each[kind][place] for each in tries) for place in range(3))
            each_one = f" ({1000 / rate:.3f} ms)" if workload == "send_one_by_one" else ""
            table.add_row(
                name, kind, f"{rate:,.0f}{each_one}", f"{rate / plain:.0%}", f"{client:.2f} s/M", f"{broker:.2f} s/M"
            )
    Console(width=None if sys.stdout.isatty() else 140).print(table)


if __name__ == "__main__":
    main()
