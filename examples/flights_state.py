"""A topic that holds state: the last departure of each plane. A cancelled flight removes its plane.

pip install '.[demo]'
python examples/flights_state.py
"""

from __future__ import annotations

import json

import pandas as pd
from flights_data import departures

from minimq import Admin, Compaction, LocalCluster, Message, Producer, PullConsumer


def write(nameserver: str, topic: str, table: pd.DataFrame) -> None:
    """Send the state of a plane each time it changes."""
    known = table[table["tailnum"].notna()]
    bodies = known.to_json(orient="records", lines=True).encode().splitlines()
    messages = [
        Message.tombstone(topic, tail) if is_cancelled else Message(topic, body, keys=[tail])
        for body, tail, is_cancelled in zip(bodies, known["tailnum"], known["dep_time"].isna(), strict=True)
    ]
    with Producer(nameserver) as producer:
        producer.send_many(messages)


def read(nameserver: str, topic: str) -> dict[str, bytes]:
    """Return the current table: read the whole topic, the last message of each key wins."""
    table: dict[str, bytes] = {}
    with Admin(nameserver) as admin, PullConsumer(nameserver) as consumer:
        consumer.assign(admin.route(topic).queues)
        while not consumer.at_end():
            table.update((message.keys[0], message.body) for message in consumer.poll())
    return {key: body for key, body in table.items() if body}  # a tombstone has no body


def run(nameserver: str, topic: str, table: pd.DataFrame) -> dict[str, bytes]:
    """Write all changes to a compacted topic, and return its table."""
    with Admin(nameserver) as admin:
        admin.create_topic(topic, queues=4, compaction=Compaction(tombstone_s=86_400))
    write(nameserver, topic, table)
    return read(nameserver, topic)


if __name__ == "__main__":
    with LocalCluster(brokers=2) as cluster:
        planes = run(cluster.nameserver, "planes", departures()[:50_000])
        latest = [json.loads(body) for body in planes.values()]
        print(f"{len(latest)} planes; {sum(plane['dest'] == 'LAX' for plane in latest)} went to Los Angeles last")
