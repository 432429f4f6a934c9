"""The workloads of the benchmarks, each in a process of its own: `python workloads.py NAME ARGUMENTS-AS-JSON`.

A workload connects, says "ready", waits for a line on stdin, runs, and prints what it measured as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

from minimq import Message, Producer, PullConsumer

TAGS = ("red", "green", "blue", "black")
Result = dict[str, Any]


def messages(topic: str, count: int, size: int) -> Iterator[Message]:
    """Yield messages with a tag and a key."""
    body = b"x" * size
    for number in range(count):
        yield Message(topic, body, TAGS[number & 3], [f"key{number:08d}"])


def start_line() -> tuple[float, float]:
    """Say that all is ready, wait for the sign, and return clock and CPU time."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.perf_counter(), time.process_time()


def outcome(began: tuple[float, float], count: int, **more: object) -> Result:
    """Return what was measured since the start line."""
    seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"seconds": seconds, "cpu_s": cpu, "count": count, **more}


def produce(nameserver: str, topic: str, count: int, size: int) -> Result:
    """`send_many` of an iterable of messages, a receipt for each."""
    with Producer(nameserver) as producer:
        producer.send_many(messages(topic, 1000, size))
        began = start_line()
        receipts = producer.send_many(messages(topic, count, size))
        assert len(receipts) == count
        return outcome(began, count)


def consume(nameserver: str, topic: str, group: str, count: int) -> Result:
    """Poll messages, touch each body."""
    with PullConsumer(nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        began = start_line()
        received = touched = 0
        while received < count:
            batch = consumer.poll(timeout=30, max_messages=8192)
            if not batch:
                raise SystemExit(f"only {received} of {count} messages came")
            received += len(batch)
            for message in batch:
                touched += len(message.body)
        return outcome(began, received, bytes=touched)


def send_one_by_one(nameserver: str, topic: str, count: int) -> Result:
    """Blocking `send`, one after the other."""
    with Producer(nameserver) as producer:
        message = Message(topic, b"x" * 100, "red", ["key"])
        for _ in range(50):
            producer.send(message)
        began = start_line()
        moments = [time.perf_counter()]
        for _ in range(count):
            producer.send(message)
            moments.append(time.perf_counter())
        latencies = sorted((later - former) * 1000 for former, later in pairwise(moments))
        return outcome(began, count, **{f"p{q}_ms": latencies[count * q // 100] for q in (50, 99)})


def send_paced(nameserver: str, topic: str, count: int, rate: int) -> Result:
    """Blocking `send` at a steady rate; each body is the time at which it was sent."""
    with Producer(nameserver) as producer:
        producer.send(Message(topic, b"warm"))
        began = start_line()
        for number in range(count):
            time.sleep(max(0.0, began[0] + number / rate - time.perf_counter()))
            producer.send(Message(topic, str(time.perf_counter_ns()).encode()))
        return outcome(began, count)


def receive_paced(nameserver: str, topic: str, count: int) -> Result:
    """Take the time from `send` to `poll` of each message of `send_paced`."""
    with PullConsumer(nameserver, group="latency") as consumer:
        consumer.subscribe(topic)
        while not consumer.assignment:
            consumer.poll(timeout=0.05)
        began = start_line()
        latencies: list[float] = []
        while len(latencies) < count:
            batch = consumer.poll(timeout=10)
            now = time.perf_counter_ns()  # one clock for all processes of a machine
            latencies += [(now - int(message.body)) / 1e6 for message in batch if message.body != b"warm"]
        latencies.sort()
        quantiles = {f"p{q}_ms": latencies[min(int(count * q / 100), count - 1)] for q in (50, 90, 99)}
        return outcome(began, count, max_ms=latencies[-1], **quantiles)


WORKLOADS: dict[str, Callable[..., Result]] = {
    function.__name__: function for function in (produce, consume, send_one_by_one, send_paced, receive_paced)
}

if __name__ == "__main__":
    print(json.dumps(WORKLOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
