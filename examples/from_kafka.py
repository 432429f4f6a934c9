"""Copies a Kafka topic to a minimq topic until Ctrl-C, or with --exit-at-end until everything is copied.

pip install minimq confluent-kafka
minimq topic create orders && python examples/from_kafka.py 127.0.0.1:9092 orders 127.0.0.1:9876
"""

from __future__ import annotations

import sys

import confluent_kafka

from minimq import Message, Producer, by_hash
from minimq.kafka import properties_of, text_of


def translate(record: confluent_kafka.Message, topic: str) -> Message:
    """Convert a Kafka record to a message; `minimq.kafka` has the functions for the reverse direction."""
    properties = properties_of(record.headers() or ())
    properties["kafka"] = f"{record.partition()}@{record.offset()}"  # lets consumers detect duplicates
    if record.value() is None:
        properties["kafka-null"] = "true"
    keys = [] if record.key() is None else [text_of(record.key())]
    return Message(topic, record.value() or b"", keys=keys, properties=properties)


def copy(kafka: str, topic: str, nameserver: str, *, idle_s: float | None = None) -> int:
    """Copy what the group `minimq-copy` has not committed, until no record arrives for `idle_s`; return the number."""
    source = confluent_kafka.Consumer(
        {
            "bootstrap.servers": kafka,
            "group.id": "minimq-copy",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    source.subscribe([topic])
    copied = 0
    try:
        with Producer(nameserver, send_timeout_s=60) as producer:
            while (records := source.consume(5000, timeout=idle_s or 10)) or idle_s is None:
                for record in records:
                    if record.error():
                        raise confluent_kafka.KafkaException(record.error())
                messages = [translate(record, topic) for record in records]
                producer.send_many((message for message in messages if message.keys), selector=by_hash())
                producer.send_many(message for message in messages if not message.keys)
                if records:  # all of them are on disk now
                    source.commit(asynchronous=False)
                    copied += len(records)
    finally:
        source.close()
    return copied


if __name__ == "__main__":
    print(f"{copy(*sys.argv[1:4], idle_s=10 if '--exit-at-end' in sys.argv else None)} records copied")
