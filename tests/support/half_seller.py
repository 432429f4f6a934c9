"""A program that has transactions with a database until it is killed; each has one or two messages.

python -m support.half_seller NAMESERVER TOPIC DATABASE SEED
"""

from __future__ import annotations

import random
import sqlite3
import sys
import uuid
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from minimq import Message, TransactionalProducer, TransactionResolution
from minimq.errors import MinimqError

GROUP = "sellers"


def prepare(database: Path) -> None:
    with closing(sqlite3.connect(database)) as db:
        db.execute("PRAGMA journal_mode=WAL")
        db.execute("CREATE TABLE sold (id TEXT PRIMARY KEY, messages INTEGER)")


def sold(database: Path) -> dict[str, int]:
    """Return how many messages each transaction has that the database has committed."""
    with closing(sqlite3.connect(database)) as db:
        return dict(db.execute("SELECT id, messages FROM sold"))


def check(database: Path, message: Message) -> TransactionResolution:
    with closing(sqlite3.connect(database)) as db:
        row = db.execute("SELECT 1 FROM sold WHERE id = ?", (message.keys[0],)).fetchone()
    return TransactionResolution.COMMIT if row else TransactionResolution.ROLLBACK


def sell(producer: TransactionalProducer, topic: str, db: sqlite3.Connection, chance: random.Random) -> None:
    """Have one transaction; a third of them is rolled back."""
    number, messages = str(uuid.uuid4()), chance.randrange(1, 3)
    with producer.transaction() as tx:
        for part in range(messages):
            tx.send(Message(topic, f"{number}/{part}".encode(), keys=[number]))
        if chance.random() < 0.33:
            tx.rollback()
            return
        db.execute("INSERT INTO sold VALUES (?, ?)", (number, messages))
        db.commit()


def main() -> None:
    nameserver, topic, database, seed = sys.argv[1:]
    chance = random.Random(int(seed))
    with (
        closing(sqlite3.connect(database, timeout=30.0)) as db,
        TransactionalProducer(nameserver, group=GROUP, check=partial(check, Path(database))) as producer,
    ):
        while True:
            with suppress(MinimqError):  # a broker is offline: the check decides
                sell(producer, topic, db, chance)


if __name__ == "__main__":
    main()
