"""The workloads of `beside_kafka.py` for Kafka, with Confluent's client; `workloads.py` has those for minimq."""

from __future__ import annotations

import json
import sys
import time
from itertools import pairwise
from typing import Any

from confluent_kafka import Consumer, KafkaError, Message, Producer
from workloads import Result, outcome, start_line

_WAIT_S = 30.0


class _Receipts:
    """Counts confirmed deliveries; the callback of every message."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, error: KafkaError | None, _: Message) -> None:
        if error is not None:
            raise SystemExit(f"Kafka rejected a message: {error}")
        self.count += 1


def _producer(address: str, **more: object) -> Producer:
    return Producer({"bootstrap.servers": address, "acks": "all", "queue.buffering.max.kbytes": 64 << 10, **more})


def _consumer(address: str, topic: str, group: str) -> tuple[Consumer, list[Message]]:
    """Return a consumer with its partitions, and the messages that it polled before it had them."""
    reader = Consumer({"bootstrap.servers": address, "group.id": group, "auto.offset.reset": "earliest"})
    reader.subscribe([topic])
    until, early = time.monotonic() + _WAIT_S, []
    while not reader.assignment():
        if time.monotonic() > until:
            raise SystemExit("Kafka assigns no partition")
        if (message := reader.poll(0.05)) is not None:
            early.append(message)
    return reader, early


def _send(producer: Producer, topic: str, body: bytes, receipts: _Receipts) -> None:
    wanted = receipts.count + 1
    producer.produce(topic, body, b"key", on_delivery=receipts)
    while receipts.count < wanted:
        producer.poll(_WAIT_S)


def produce(address: str, topic: str, count: int, size: int) -> Result:
    """Send messages in a pipeline, with a receipt for each."""
    producer, receipts, body = _producer(address), _Receipts(), b"x" * size
    _send(producer, topic, body, receipts)
    began = start_line()
    for number in range(count):
        while True:
            try:
                producer.produce(topic, body, f"key{number:08d}", on_delivery=receipts)
                break
            except BufferError:
                producer.poll(0.1)
        if number & 1023 == 0:
            producer.poll(0)
    producer.flush()
    assert receipts.count == count + 1
    return outcome(began, count)


def consume(address: str, topic: str, group: str, count: int) -> Result:
    """Receive messages by the thousand, and touch each body."""
    reader, early = _consumer(address, topic, group)
    began = start_line()
    received, touched = len(early), 0
    while received < count:
        batch = reader.consume(min(8192, count - received), _WAIT_S)  # it waits for the whole number
        if not batch:
            raise SystemExit(f"only {received} of {count} messages came")
        received += len(batch)
        for message in batch:
            touched += len(message.value() or b"")
    result = outcome(began, received, bytes=touched)
    reader.close()
    return result


def send_one_by_one(address: str, topic: str, count: int) -> Result:
    """Send one message after the other, and wait for each receipt."""
    producer, receipts, body = _producer(address, **{"linger.ms": 0}), _Receipts(), b"x" * 100
    for _ in range(50):
        _send(producer, topic, body, receipts)
    began = start_line()
    moments = [time.perf_counter()]
    for _ in range(count):
        _send(producer, topic, body, receipts)
        moments.append(time.perf_counter())
    latencies = sorted((later - former) * 1000 for former, later in pairwise(moments))
    return outcome(began, count, **{f"p{q}_ms": latencies[count * q // 100] for q in (50, 99)})


def send_paced(address: str, topic: str, count: int, rate: int) -> Result:
    """Send at a steady rate; each body is the time of its send."""
    producer, receipts = _producer(address, **{"linger.ms": 0}), _Receipts()
    _send(producer, topic, b"warm", receipts)
    began = start_line()
    for number in range(count):
        time.sleep(max(0.0, began[0] + number / rate - time.perf_counter()))
        _send(producer, topic, str(time.perf_counter_ns()).encode(), receipts)
    return outcome(began, count)


def receive_paced(address: str, topic: str, count: int) -> Result:
    """Measure the latency from send to `poll` of each message of `send_paced`."""
    reader, _ = _consumer(address, topic, "latency")
    began = start_line()
    latencies: list[float] = []
    while len(latencies) < count:
        message = reader.poll(_WAIT_S)
        now = time.perf_counter_ns()  # all processes of a machine share this clock
        if message is None:
            raise SystemExit(f"only {len(latencies)} of {count} messages came")
        body = message.value() or b""
        if message.error() is None and body != b"warm":
            latencies.append((now - int(body)) / 1e6)
    latencies.sort()
    result = outcome(began, count, **{f"p{q}_ms": latencies[min(count * q // 100, count - 1)] for q in (50, 99)})
    reader.close()
    return result


WORKLOADS = {function.__name__: function for function in (produce, consume, send_one_by_one, send_paced, receive_paced)}

if __name__ == "__main__":
    arguments: dict[str, Any] = json.loads(sys.argv[2])
    print(json.dumps(WORKLOADS[sys.argv[1]](**arguments)), flush=True)
