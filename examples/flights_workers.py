"""A pool of workers for the flights of a month: each flight goes to one worker, and one that fails blocks no others.

    pip install '.[demo]'   # pandas and the flights
    python examples/flights_workers.py

Worker processes take flights from a work queue one by one, and send their speeds to another topic. The data has a
flight that took no time, whose speed cannot be computed: workers log the error, and after three deliveries it becomes a
dead letter. The results are compared with those computed directly from the data.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pandas as pd
from flights_data import as_messages, departures
from flights_worker import MILES_PER_NAUTICAL_MILE, MINUTES

from minimq import Admin, LocalCluster, Producer, PullConsumer

WORKER = Path(__file__).with_name("flights_worker.py")
GROUP = "speedometer"
_GIVE_UP_S = 120.0


def with_poison(table: pd.DataFrame) -> pd.DataFrame:
    """Return departures where the one in the middle took no time."""
    poisoned = table.reset_index(drop=True)
    poisoned.loc[len(poisoned) // 2, "air_time"] = 0
    return poisoned


def send(nameserver: str, topic: str, table: pd.DataFrame) -> None:
    """Send departures; returns when all of them are on disk."""
    with Producer(nameserver) as producer:
        producer.send_many(as_messages(topic, table))


@contextmanager
def pool(workers: int, *arguments: str) -> Iterator[None]:
    """Run worker processes during the block."""
    command = [sys.executable, str(WORKER), *arguments]
    processes = [subprocess.Popen(command) for _ in range(workers)]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
        for process in processes:
            process.wait()


def received(nameserver: str, sink: str, count: int) -> pd.DataFrame:
    """Return the results of `count` flights, without duplicates."""
    found: dict[str, tuple[str, float | None]] = {}
    give_up = time.monotonic() + _GIVE_UP_S
    with PullConsumer(nameserver, group=f"{sink}-reader") as consumer:
        consumer.subscribe(sink)
        while len(found) < count:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{len(found):,} of {count:,} flights were done within {_GIVE_UP_S:.0f} s")
            for message in consumer.poll(timeout=1.0):
                results = map(json.loads, message.body.splitlines())
                found.update((result["id"], (result["carrier"], result["knots"])) for result in results)
    return pd.DataFrame(found.values(), columns=["carrier", "knots"])


def dead(admin: Admin, group: str) -> list[dict[str, object]]:
    """Wait for dead letters and return their flights."""
    give_up = time.monotonic() + _GIVE_UP_S
    while not (letters := list(admin.dead_letters(group))) and time.monotonic() < give_up:
        time.sleep(0.1)
    return [json.loads(letter.body) for letter in letters]


def expected(table: pd.DataFrame) -> pd.Series:
    """Compute the mean speed by carrier directly from the data, without the flight that took no time."""
    good = table[table["air_time"] != 0]
    speeds = good["distance"] / MILES_PER_NAUTICAL_MILE / (good["air_time"] / MINUTES)
    return speeds.groupby(good["carrier"]).mean()


def run(nameserver: str, source: str, sink: str, group: str, table: pd.DataFrame, workers: int) -> list[str]:
    """Send departures, run the workers, and return the mistakes in the results."""
    table = with_poison(table)
    send(nameserver, source, table)
    with pool(workers, nameserver, group, source, sink), Admin(nameserver) as admin:
        results = received(nameserver, sink, len(table) - 1)
        letters = dead(admin, group)
    faults = []
    if [letter["air_time"] for letter in letters] != [0]:
        faults.append(f"the dead letters are {letters}")
    figures, wanted = results.groupby("carrier")["knots"].mean(), expected(table)
    for carrier in sorted({*figures.index, *wanted.index}):
        got, want = figures.get(carrier, math.nan), wanted.get(carrier, math.nan)
        if not math.isclose(got, want) and not (math.isnan(got) and math.isnan(want)):
            faults.append(f"{carrier} flies at {got:.1f} knots by the workers, and at {want:.1f} by the data")
    return faults


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, default=4, help="worker processes (default: 4)")
    workers = parser.parse_args().workers
    table = departures()
    table = table[table["month"] == 1]
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in ("flights", "speeds"):
                admin.create_topic(topic, queues=2)
        started = time.monotonic()
        faults = run(cluster.nameserver, "flights", "speeds", GROUP, table, workers)
        print(f"{len(table):,} flights by {workers} workers: {time.monotonic() - started:.1f} s; 1 is a dead letter")
    for fault in faults:
        print("wrong:", fault)
    if not faults:
        print("the speed of each carrier is the same when computed straight from the data")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
