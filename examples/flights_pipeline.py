"""A pipeline for the flights of a month: workers are killed repeatedly, and each flight counts exactly once.

    pip install '.[demo]'   # pandas and the flights
    python examples/flights_pipeline.py

Workers read departures, and send the late ones to one topic and the cancelled ones to another. Offsets and sent
messages are one transaction. Every now and then a worker is killed and another one started. The results are compared
with the flights selected directly from the data: none is lost or duplicated.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections import Counter

import pandas as pd
from flights_data import as_messages, departures

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer
from minimq.errors import Fenced, SendFailed

LATE_MINUTES = 60
_GIVE_UP_S = 120.0


def work(nameserver: str, group: str, source: str, late: str, cancelled: str) -> None:
    """Select flights until killed."""
    with Producer(nameserver) as producer, PullConsumer(nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe(source)
        while True:
            try:
                with producer.transaction(consumer) as tx:
                    for message in tx.receive(max_messages=200):
                        flight = json.loads(message.body)
                        if flight["dep_time"] is None:
                            tx.send(Message(cancelled, message.body, tag=message.tag))
                        elif (flight["dep_delay"] or 0) >= LATE_MINUTES:
                            tx.send(Message(late, message.body, tag=message.tag))
            except (Fenced, SendFailed) as error:
                print("received again:", error, file=sys.stderr)


def lag(nameserver: str, group: str) -> int | None:
    """Return the lag of a group in messages; None before it has started."""
    with Admin(nameserver) as admin:
        described = admin.describe_group(group) if group in admin.list_groups() else None
        return described.lag if described is not None and described.queues else None


def run_workers(nameserver: str, group: str, topics: tuple[str, str, str], workers: int, kills: int) -> None:
    """Run workers until all flights are processed; kill one `kills` times meanwhile."""
    command = [sys.executable, __file__, "--worker", nameserver, group, *topics]
    running = [subprocess.Popen(command) for _ in range(workers)]
    give_up = time.monotonic() + _GIVE_UP_S
    try:
        while (left := lag(nameserver, group)) != 0 or kills:
            if time.monotonic() > give_up:
                raise TimeoutError(f"{left} flights are left after {_GIVE_UP_S:.0f} s")
            time.sleep(0.3)
            if kills and left is not None:
                running[0].kill()
                running.pop(0).wait()
                running.append(subprocess.Popen(command))
                kills -= 1
    finally:
        for worker in running:
            worker.kill()
            worker.wait()


def stored(nameserver: str, topic: str) -> Counter[bytes]:
    """Return the number of copies of each body in a topic."""
    with Admin(nameserver) as admin, PullConsumer(nameserver) as reader:
        described = admin.describe_topic(topic)
        reader.assign(queue.queue for queue in described.queues)
        found: Counter[bytes] = Counter()
        while found.total() < described.messages:
            found.update(message.body for message in reader.poll())
        return found


def run(nameserver: str, group: str, topics: tuple[str, str, str], table: pd.DataFrame, kills: int) -> list[str]:
    """Send departures, run the workers, and return the mistakes in the results."""
    source, late, cancelled = topics
    with Producer(nameserver) as producer:
        producer.send_many(as_messages(source, table))
    run_workers(nameserver, group, topics, workers=2, kills=kills)
    is_cancelled = table["dep_time"].isna()
    chosen = {late: ~is_cancelled & (table["dep_delay"] >= LATE_MINUTES), cancelled: is_cancelled}
    faults = []
    for topic, rows in chosen.items():
        wanted = Counter(message.body for message in as_messages(topic, table[rows]))
        got = stored(nameserver, topic)
        if got != wanted:
            missing, more = (wanted - got).total(), (got - wanted).total()
            faults.append(f"{topic}: {missing} flights are missing, and {more} are too many")
    return faults


def main() -> int:
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=10, help="workers to kill (default: 10)")
    kills = parser.parse_args().kills
    table = departures()
    table = table[table["month"] == 1]
    topics = "flights", "late", "cancelled"
    with LocalCluster(brokers=2) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in topics:
                admin.create_topic(topic, queues=2)
        started = time.monotonic()
        faults = run(cluster.nameserver, "chooser", topics, table, kills)
        print(f"{len(table):,} flights, {kills} workers killed: {time.monotonic() - started:.1f} s")
    for fault in faults:
        print("wrong:", fault)
    if not faults:
        print("each late and each cancelled flight is there once")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
