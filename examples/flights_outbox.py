"""Tickets in a database and a message for each: both or none, although the selling program crashes twice.

    pip install '.[demo]'   # pandas and the flights
    python examples/flights_outbox.py

Each sale is a row in SQLite and a half message, which is delivered if the row is committed. The first program crashes
between its message and its row, the second one between its row and the end of the transaction. The third one resolves
the transactions of both, since it belongs to the same producer group and sees the same rows.
"""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import tempfile
import time
import uuid
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from contextlib import closing
from functools import partial
from pathlib import Path

import pandas as pd
from flights_data import departures

from minimq import Admin, LocalCluster, Message, PullConsumer, TransactionalProducer, TransactionResolution

#: Exit status of a program that crashes, as if the power failed.
NO_POWER = 3
_GIVE_UP_S = 60.0
#: Brokers check half messages after 0.1 seconds here, not after the default of 6.
QUICK = {"check_back_after_s": 0.1, "max_check_backs": 1_000}


def tickets(database: Path) -> list[str]:
    """Return the numbers of all tickets in the database."""
    with closing(sqlite3.connect(database)) as db:
        db.execute("CREATE TABLE IF NOT EXISTS tickets (number TEXT PRIMARY KEY, flight TEXT)")
        return [number for (number,) in db.execute("SELECT number FROM tickets")]


def check(database: Path, message: Message) -> TransactionResolution:
    """Resolve a half message: commit it if its ticket is in the database, else roll back."""
    return TransactionResolution.COMMIT if message.keys[0] in tickets(database) else TransactionResolution.ROLLBACK


def sell(nameserver: str, topic: str, database: Path, flights: pd.DataFrame, power: str) -> None:
    """Sell a ticket for each flight; `power` says when to crash: before the "row", before the "end", or "never"."""
    tickets(database)
    with (
        closing(sqlite3.connect(database)) as db,
        TransactionalProducer(nameserver, group=f"{topic}-desk", check=partial(check, database)) as producer,
    ):
        for count, flight in enumerate(flights.itertuples()):
            number = str(uuid.uuid4())  # of this attempt, not of the flight: each attempt is a transaction of its own
            with producer.transaction() as tx:
                tx.send(Message(topic, f"{flight.carrier}{flight.flight}".encode(), keys=[number]))
                if power == "row" and count == len(flights) // 2:
                    os._exit(NO_POWER)
                db.execute("INSERT INTO tickets VALUES (?, ?)", (number, f"{flight.carrier}{flight.flight}"))
                db.commit()
                if power == "end" and count == len(flights) // 2:
                    os._exit(NO_POWER)
        wait_until_all_ended(nameserver, producer.group)


def wait_until_all_ended(nameserver: str, group: str) -> None:
    """Wait until the group has no open transactions."""
    give_up = time.monotonic() + _GIVE_UP_S
    with Admin(nameserver) as admin:
        while admin.list_transactions(group).count and time.monotonic() < give_up:
            time.sleep(0.1)


def run(nameserver: str, topic: str, database: Path, day: int) -> list[str]:
    """Sell the flights of an hour of a day three times; return the numbers of the delivered tickets."""
    for power in ("row", "end", "never"):
        command = [sys.executable, __file__, "--sell", nameserver, topic, str(database), str(day), power]
        done = subprocess.run(command, check=False)
        assert done.returncode == (0 if power == "never" else NO_POWER)
    delivered: list[str] = []
    with PullConsumer(nameserver, group=f"{topic}-gates") as consumer:
        consumer.subscribe(topic)
        give_up = time.monotonic() + _GIVE_UP_S
        while len(delivered) < len(tickets(database)) and time.monotonic() < give_up:
            delivered += [message.keys[0] for message in consumer.poll(timeout=1.0)]
        delivered += [message.keys[0] for message in consumer.poll(timeout=0.5)]
    return delivered


def main() -> None:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--sell", nargs=5, metavar=("NAMESERVER", "TOPIC", "DATABASE", "DAY", "POWER"))
    sale = parser.parse_args().sell
    if sale:
        nameserver, topic, database, day, power = sale
        flights = departures().query(f"month == 1 and day == {int(day)} and hour == 5")
        sell(nameserver, topic, Path(database), flights, power)
        return
    with tempfile.TemporaryDirectory() as folder, LocalCluster(broker_options=QUICK) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("tickets", queues=1)
        database = Path(folder) / "tickets.db"
        delivered = run(cluster.nameserver, "tickets", database, 30)
        in_database = tickets(database)
    equal = sorted(delivered) == sorted(in_database)
    print(f"{len(delivered)} delivered, {len(in_database)} in the database, equal: {equal}")


if __name__ == "__main__":
    main()
