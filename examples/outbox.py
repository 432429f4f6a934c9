"""A row in a database and a message about it: both or none, even if the program fails between the two.

python examples/outbox.py
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing, suppress
from pathlib import Path

from minimq import Admin, LocalCluster, Message, PullConsumer, TransactionalProducer, TransactionResolution


def run(nameserver: str, database: Path) -> tuple[list[str], list[str]]:
    """Place orders, where every third fails before its row is inserted; return the rows, and the delivered orders."""
    with Admin(nameserver) as admin, closing(sqlite3.connect(database)) as db:
        admin.create_topic("orders", queues=1)
        db.execute("CREATE TABLE orders (number TEXT PRIMARY KEY)")

    def check(message: Message) -> TransactionResolution:
        """Resolve a transaction whose program has failed; brokers ask for it."""
        with closing(sqlite3.connect(database)) as own:
            found = own.execute("SELECT 1 FROM orders WHERE number = ?", (message.keys[0],)).fetchone()
        return TransactionResolution.COMMIT if found else TransactionResolution.ROLLBACK

    with (
        TransactionalProducer(nameserver, group="shop", check=check) as producer,
        closing(sqlite3.connect(database)) as db,
    ):
        for number in range(9):
            with suppress(RuntimeError), producer.transaction() as tx:
                tx.send(Message("orders", b"placed", keys=[f"o-{number}"]))  # invisible until the block ends
                if number % 3 == 2:
                    raise RuntimeError("out of stock")
                with db:
                    db.execute("INSERT INTO orders VALUES (?)", (f"o-{number}",))
        rows = [name for (name,) in db.execute("SELECT number FROM orders")]
    delivered: list[str] = []
    with PullConsumer(nameserver, group="mailer") as consumer:
        consumer.subscribe("orders")
        while len(delivered) < len(rows):
            delivered += [message.keys[0] for message in consumer.poll(timeout=5)]
    return rows, delivered


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder, LocalCluster(brokers=1) as cluster:
        rows, delivered = run(cluster.nameserver, Path(folder) / "shop.db")
    print(f"{len(rows)} rows, {len(delivered)} messages, equal: {sorted(rows) == sorted(delivered)}")
