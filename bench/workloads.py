"""The workloads of the benchmarks, each in its own process: `python workloads.py NAME ARGUMENTS-AS-JSON`.

A workload connects, prints "ready", waits for a line on stdin, runs, and prints its results as one line of JSON.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import Any

from minimq import ConsumeResult, Message, Producer, PullConsumer, PushConsumer, aio
from minimq.consuming.received import ReceivedMessage

TAGS = ("red", "green", "blue", "black")
#: Sends of `gather` in flight.
GATHERED = 5_000
Result = dict[str, Any]


def messages(topic: str, count: int, size: int) -> Iterator[Message]:
    """Yield messages with a tag and a key."""
    body = b"x" * size
    for number in range(count):
        yield Message(topic, body, TAGS[number & 3], [f"key{number:08d}"])


def start_line() -> tuple[float, float]:
    """Print "ready", wait for a line on stdin, and return clock and CPU time."""
    print("ready", flush=True)
    sys.stdin.readline()
    return time.perf_counter(), time.process_time()


def outcome(began: tuple[float, float], count: int, **more: object) -> Result:
    """Return the results since the start line."""
    seconds, cpu = time.perf_counter() - began[0], time.process_time() - began[1]
    return {"seconds": seconds, "cpu_s": cpu, "count": count, **more}


def produce(nameserver: str, topic: str, count: int, size: int) -> Result:
    """`send_many` of an iterable, with a receipt for each message."""
    with Producer(nameserver) as producer:
        producer.send_many(messages(topic, 1000, size))
        began = start_line()
        receipts = producer.send_many(messages(topic, count, size))
        assert len(receipts) == count
        return outcome(began, count)


def consume(nameserver: str, topic: str, group: str, count: int) -> Result:
    """Join the group, then poll messages and touch each body."""
    with PullConsumer(nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        early: list[ReceivedMessage] = []
        while not consumer.assignment:
            early += consumer.poll(timeout=0.05)
        began = start_line()
        received, touched = len(early), 0
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


def send_one_by_one_aio(nameserver: str, topic: str, count: int) -> Result:
    """`send` of one coroutine, one after the other."""

    async def run() -> Result:
        async with aio.Producer(nameserver) as producer:
            message = Message(topic, b"x" * 100, "red", ["key"])
            for _ in range(50):
                await producer.send(message)
            began = start_line()
            for _ in range(count):
                await producer.send(message)
            return outcome(began, count)

    return asyncio.run(run())


def send_async(nameserver: str, topic: str, count: int) -> Result:
    """`send_async` of one message after the other; waits for all futures at the end."""
    with Producer(nameserver) as producer:
        producer.send_many(messages(topic, 1000, 100))
        began = start_line()
        futures = [producer.send_async(message) for message in messages(topic, count, 100)]
        for future in futures:
            future.result()
        return outcome(began, count)


def delay_many(nameserver: str, topic: str, count: int, at: float, after_s: float) -> Result:
    """`send_many` of messages with a common due time or a common delay."""
    moment, delay_s = at or None, after_s or None
    body = b"x" * 100
    with Producer(nameserver) as producer:
        began = start_line()
        given = (Message(topic, body, deliver_at=moment, deliver_after_s=delay_s) for _ in range(count))
        receipts = producer.send_many(given)
        assert len(receipts) == count
        return outcome(began, count)


def delay_lone(nameserver: str, topic: str, count: int, at: float, spread_s: float) -> Result:
    """`send_async` of messages with different due times, each in its own batch."""
    body = b"x" * 100
    dues = [at + spread_s * number / count for number in range(count)]
    random.Random(7).shuffle(dues)
    with Producer(nameserver, max_in_flight_requests=256, send_timeout_s=60) as producer:
        began = start_line()
        futures = [producer.send_async(Message(topic, body, deliver_at=due, recallable=True)) for due in dues]
        for future in futures:
            future.result()
        return outcome(began, count)


def gather(nameserver: str, topic: str, count: int) -> Result:
    """`asyncio.gather` over `GATHERED` calls of `send`, repeatedly."""

    async def run() -> Result:
        async with aio.Producer(nameserver) as producer:
            await producer.send_many(messages(topic, 1000, 100))
            began = start_line()
            given = messages(topic, count, 100)
            while part := list(islice(given, GATHERED)):
                await asyncio.gather(*map(producer.send, part))
            return outcome(began, count)

    return asyncio.run(run())


def push(nameserver: str, topic: str, group: str, count: int) -> Result:
    """Count messages in the plain listener of a `PushConsumer`."""
    received, all_came = [0], threading.Event()
    counting = threading.Lock()

    def listener(batch: list[ReceivedMessage]) -> ConsumeResult:
        with counting:
            received[0] += len(batch)
        if received[0] >= count:
            all_came.set()
        return ConsumeResult.SUCCESS

    with PushConsumer(nameserver, group=group) as consumer:
        consumer.subscribe(topic)
        began = start_line()
        consumer.start(listener)
        if not all_came.wait(120):
            raise SystemExit(f"only {received[0]} of {count} messages came")
        return outcome(began, received[0])


def push_aio(nameserver: str, topic: str, group: str, count: int, at_once: int = 8, sleep_s: float = 0.0) -> Result:
    """Count messages in the coroutine listener of a `PushConsumer` of aio; with `sleep_s` it sleeps first."""

    async def run() -> Result:
        received, all_came = 0, asyncio.Event()

        async def listener(batch: list[ReceivedMessage]) -> ConsumeResult:
            nonlocal received
            if sleep_s:
                await asyncio.sleep(sleep_s)
            received += len(batch)
            if received >= count:
                all_came.set()
            return ConsumeResult.SUCCESS

        batch_size = 1 if sleep_s else 32
        async with aio.PushConsumer(nameserver, group=group, threads=at_once, batch_size=batch_size) as consumer:
            consumer.subscribe(topic)
            began = start_line()
            await consumer.start(listener)
            async with asyncio.timeout(120):
                await all_came.wait()
            return outcome(began, received, threads=threading.active_count())

    return asyncio.run(run())


def send_paced(nameserver: str, topic: str, count: int, rate: int) -> Result:
    """Blocking `send` at a steady rate; each body is the time of its send."""
    with Producer(nameserver) as producer:
        producer.send(Message(topic, b"warm"))
        began = start_line()
        for number in range(count):
            time.sleep(max(0.0, began[0] + number / rate - time.perf_counter()))
            producer.send(Message(topic, str(time.perf_counter_ns()).encode()))
        return outcome(began, count)


def receive_paced(nameserver: str, topic: str, count: int) -> Result:
    """Measure the latency from `send` to `poll` of each message of `send_paced`."""
    with PullConsumer(nameserver, group="latency") as consumer:
        consumer.subscribe(topic)
        while not consumer.assignment:
            consumer.poll(timeout=0.05)
        began = start_line()
        latencies: list[float] = []
        while len(latencies) < count:
            batch = consumer.poll(timeout=10)
            now = time.perf_counter_ns()  # all processes of a machine share this clock
            latencies += [(now - int(message.body)) / 1e6 for message in batch if message.body != b"warm"]
        latencies.sort()
        quantiles = {f"p{q}_ms": latencies[min(int(count * q / 100), count - 1)] for q in (50, 90, 99)}
        return outcome(began, count, max_ms=latencies[-1], **quantiles)


WORKLOADS: dict[str, Callable[..., Result]] = {
    function.__name__: function
    for function in (
        produce,
        consume,
        send_one_by_one,
        send_one_by_one_aio,
        delay_many,
        delay_lone,
        send_async,
        gather,
        push,
        push_aio,
        send_paced,
        receive_paced,
    )
}

if __name__ == "__main__":
    print(json.dumps(WORKLOADS[sys.argv[1]](**json.loads(sys.argv[2]))), flush=True)
