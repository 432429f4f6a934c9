"""A reminder before each departure of a morning; reminders of cancelled flights are recalled.

    pip install '.[demo]'   # pandas and the flights
    python examples/flights_reminders.py

Reminders are delayed messages, which brokers hold until they are due. An hour of the timetable takes five seconds here.
At the end, the reminders are compared with the flights that took place.
"""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from datetime import UTC, datetime, timedelta

import pandas as pd
from flights_data import departures

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer

#: Duration of a minute of the timetable.
MINUTE = timedelta(seconds=5 / 60)
BEFORE = 30 * MINUTE
_GIVE_UP_S = 120.0


def schedule(producer: Producer, topic: str, table: pd.DataFrame, begin: datetime) -> int:
    """Send a reminder for each flight, and recall those of cancelled flights; return how many are left."""
    recalled = 0
    for flight in table.itertuples():
        departure = begin + (60 * (flight.hour - table.hour.min()) + flight.minute) * MINUTE
        body = json.dumps({"carrier": flight.carrier, "flight": flight.flight, "departs": departure.isoformat()})
        reminder = Message(topic, body.encode(), tag=flight.carrier, deliver_at=departure - BEFORE, recallable=True)
        receipt = producer.send(reminder)
        if pd.isna(flight.dep_time):  # it is cancelled
            recalled += bool(producer.recall(receipt.recall_handle))
    return len(table) - recalled


def run(nameserver: str, topic: str, table: pd.DataFrame) -> list[tuple[str, int]]:
    """Return carrier and number of the flights whose reminders were received."""
    with Producer(nameserver) as producer:
        left = schedule(producer, topic, table, datetime.now(UTC) + BEFORE + timedelta(seconds=1))
    reminded: list[tuple[str, int]] = []
    give_up = time.monotonic() + _GIVE_UP_S
    with PullConsumer(nameserver, group=f"{topic}-phones") as consumer:
        consumer.subscribe(topic)
        while len(reminded) < left and time.monotonic() < give_up:
            flights = [json.loads(message.body) for message in consumer.poll(timeout=1.0)]
            reminded += [(flight["carrier"], flight["flight"]) for flight in flights]
    return reminded


def main() -> None:
    ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter).parse_args()
    table = departures().query("month == 1 and day == 30 and hour == 8")  # a stormy day
    with LocalCluster() as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("reminders", queues=1)
        reminded = run(cluster.nameserver, "reminders", table)
    print(f"{len(reminded)} reminders for {table.dep_time.notna().sum()} flights; {len(table)} were planned")


if __name__ == "__main__":
    main()
