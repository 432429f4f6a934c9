"""The steps of the demonstration: send, consume, analyse."""

from __future__ import annotations

import time

import pandas as pd
from flights_data import CarrierFigures, as_messages, departures, expected_figures, names_of_carriers
from flights_queue import ConsumerGroup, IdsByQueue, differences, ids_by_queue, produce, uncommitted
from flights_spark import check_java, figures, quiet_spark, read_topic
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from minimq import Admin, LocalCluster

TOPIC = "flights"
GROUP = "departure-board"
BROKERS = 2
QUEUES_PER_BROKER = 8

console = Console(soft_wrap=True)


def main() -> int:
    """Run the demonstration. Returns the exit status."""
    check_java()  # fail before a minute of other work
    table = departures()
    with LocalCluster(brokers=BROKERS) as cluster:
        console.print(f"Cluster: a name server at {cluster.nameserver} and {BROKERS} brokers")
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=QUEUES_PER_BROKER)
            sent = send(cluster.nameserver, table)
            faults = consume(cluster.nameserver, admin, sent, len(table))
        faults += analyse(cluster.nameserver, table)
    for fault in faults:
        console.print(f"[bold red]wrong:[/] {fault}")
    if not faults:
        console.print("[green]All of it is as it should be.[/] The cluster is stopped.")
    return 1 if faults else 0


def send(nameserver: str, table: pd.DataFrame) -> IdsByQueue:
    """Send all departures. Returns the ids of messages by queue."""
    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=console, transient=True) as progress:
        started = time.monotonic()
        receipts = produce(nameserver, as_messages(TOPIC, table), len(table), progress)
        seconds = time.monotonic() - started
    sent = ids_by_queue(receipts)
    say(f"flights sent to {len(sent)} queues and synced to disk", len(receipts), seconds)
    return sent


def consume(nameserver: str, admin: Admin, sent: IdsByQueue, total: int) -> list[str]:
    """Read everything with a group of two. Returns the mistakes."""
    group = ConsumerGroup(nameserver, GROUP, TOPIC, BROKERS * QUEUES_PER_BROKER, total)
    group.run()
    shares = " + ".join(f"{count:,}" for count in group.taken)
    say(f"consumed by a group of {len(group.taken)} ({shares})", sum(group.taken), group.seconds)
    faults = differences(sent, group.received)
    left = uncommitted(admin, GROUP, TOPIC)
    if left:
        faults.append(f"the group has not committed {left} messages")
    if not faults:
        console.print("  none lost, none twice, each queue in its order, all committed")
    return faults


def analyse(nameserver: str, table: pd.DataFrame) -> list[str]:
    """Aggregate the topic with Spark, and compare with the data. Returns the differences."""
    with console.status("starting Spark"), quiet_spark() as spark:
        read_topic(spark, nameserver, TOPIC, "offset bigint").count()  # starts its workers, before the time is taken
        started = time.monotonic()
        result = figures(read_topic(spark, nameserver, TOPIC, "tag string, body binary"))
        seconds = time.monotonic() - started
    say("read and summed up by Spark", sum(row.flights for row in result), seconds)
    show(result)
    expected = expected_figures(table)
    faults = [f"Spark has {row}, which the data has not" for row in result if row not in expected]
    faults += [f"the data has {row}, which Spark has not" for row in expected if row not in result]
    if not faults:
        console.print(f"  all {len(expected)} rows are the same when computed straight from the data")
    return faults


def show(rows: list[CarrierFigures]) -> None:
    names = names_of_carriers()
    printed = Table("carrier", title="Departures from New York, 2013")
    for heading in ("flights", "mean delay", "cancelled"):
        printed.add_column(heading, justify="right")
    for row in sorted(rows, key=lambda row: -row.flights):
        printed.add_row(
            names.get(row.carrier, row.carrier),
            f"{row.flights:,}",
            f"{row.mean_delay_min:.1f} min",
            f"{row.cancelled:.1%}",
        )
    console.print(printed)


def say(what: str, count: int, seconds: float) -> None:
    """Print a step with its throughput."""
    console.print(f"{count:,} {what}: {seconds:.2f} s, {count / seconds:,.0f} a second", highlight=False)
