"""A topic as Parquet files, without Spark: each message is in exactly one file, also after a crash.

    pip install pyarrow
    python examples/parquet_sink.py

A file is named after its first offset, and written before the commit: after a crash in between, it is written again.
"""

from __future__ import annotations

import json
import tempfile
from collections import defaultdict
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from minimq import Admin, LocalCluster, Message, MessageQueue, Producer, PullConsumer

STORED_AT = pa.timestamp("ms", "UTC")
SCHEMA = pa.schema({"order": pa.string(), "cents": pa.int64(), "stored_at": STORED_AT, "offset": pa.int64()})
ROWS = 500  # per file, or a few more


def write(folder: Path, queue: MessageQueue, rows: list[dict[str, object]]) -> None:
    """Write a file atomically; replaces one that begins at the same offset."""
    path = folder / f"{queue.broker_name}-{queue.queue_id}-{rows[0]['offset']:020}.parquet"
    pq.write_table(pa.Table.from_pylist(rows, SCHEMA), path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def run(nameserver: str, folder: Path, count: int) -> None:
    """Write `count` messages to files."""
    waiting: defaultdict[MessageQueue, list[dict[str, object]]] = defaultdict(list)
    with PullConsumer(nameserver, group="lake", auto_commit=False) as consumer:
        consumer.subscribe("orders")
        while count:
            count -= len(messages := consumer.poll(timeout=1.0))
            for message in messages:
                place = {"stored_at": message.stored_at, "offset": message.queue_offset}
                waiting[message.queue].append({**json.loads(message.body), **place})
            if not count or not messages or sum(map(len, waiting.values())) >= ROWS:
                for queue, rows in waiting.items():
                    write(folder, queue, rows)
                waiting.clear()
                consumer.commit()  # everything that poll has returned is in a file now


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name, LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin, Producer(cluster.nameserver) as producer:
            admin.create_topic("orders", queues=2)
            orders = ({"order": f"o-{number}", "cents": number} for number in range(2000))
            producer.send_many(Message("orders", json.dumps(order).encode()) for order in orders)
        run(cluster.nameserver, Path(name), 2000)
        table = pq.read_table(name)
        print(
            f"{table.num_rows} rows in {len(list(Path(name).iterdir()))} files, {sum(table['cents'].to_pylist())} cents"
        )
