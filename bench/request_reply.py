"""Requests and replies: latency of one, and throughput with many in flight.

Broker, service and requester are separate processes. CPU is in microseconds per request.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from statistics import median, quantiles

import click
from processes import cpu_seconds

from minimq import Admin, LocalCluster, Message, Producer, PushConsumer, ReceivedMessage, Reply, aio

BODY = bytes(100)
UNDER_WAY = 1_000
TIMEOUT_S = 60.0


def serve(nameserver: str, topic: str, mode: str) -> None:
    """Answer each request with its body, until stdin is closed."""

    def listener(messages: list[ReceivedMessage]) -> list[Reply]:
        return [Reply(message.body) for message in messages]

    with PushConsumer(nameserver, group=f"{topic}-service", mode=mode, batch_size=100, threads=4) as consumer:  # type: ignore[arg-type]
        consumer.subscribe(topic)
        consumer.start(listener)
        print("ready", flush=True)
        sys.stdin.read()


@contextmanager
def service(*arguments: str) -> Iterator[int]:
    """Run the service in a process during the block; yields its pid."""
    command = [sys.executable, __file__, "serve", *arguments]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield process.pid
        process.communicate()


def one_by_one(producer: Producer, topic: str, count: int) -> list[float]:
    """Make requests one after the other; return their latencies in ms."""
    times = []
    for _ in range(count):
        began = time.perf_counter()
        producer.request(Message(topic, BODY), timeout=TIMEOUT_S)
        times.append((time.perf_counter() - began) * 1000)
    return times


def pipelined(producer: Producer, topic: str, count: int) -> None:
    """Make requests with `UNDER_WAY` in flight."""
    waiting = deque(producer.request_async(Message(topic, BODY), timeout=TIMEOUT_S) for _ in range(UNDER_WAY))
    for _ in range(count - UNDER_WAY):
        waiting.popleft().result()
        waiting.append(producer.request_async(Message(topic, BODY), timeout=TIMEOUT_S))
    for future in waiting:
        future.result()


async def gathered(nameserver: str, topic: str, count: int) -> float:
    """Make requests with `UNDER_WAY` asyncio tasks; return the seconds."""
    async with aio.Producer(nameserver) as producer:
        await producer.request(Message(topic, BODY), timeout=TIMEOUT_S)

        async def ask(share: int) -> None:
            for _ in range(share):
                await producer.request(Message(topic, BODY), timeout=TIMEOUT_S)

        began = time.perf_counter()
        await asyncio.gather(*(ask(count // UNDER_WAY) for _ in range(UNDER_WAY)))
        return time.perf_counter() - began


def measured(name: str, count: int, pids: tuple[int, int], work: Callable[[], float | None]) -> dict[str, object]:
    """Measure one way of making requests."""
    own, others, began = time.process_time(), [cpu_seconds(pid) for pid in pids], time.perf_counter()
    seconds = work() or time.perf_counter() - began
    broker, served = (
        round((cpu_seconds(pid) - before) * 1e6 / count) for pid, before in zip(pids, others, strict=True)
    )
    requester = round((time.process_time() - own) * 1e6 / count)
    cpu = {"requester": requester, "broker": broker, "service": served}
    return {"way": name, "per_second": round(count / seconds), "cpu_us": cpu}


def rows_of(mode: str, count: int) -> Iterator[dict[str, object]]:
    """Yield the results for a service with a mode."""
    topic = f"requests-{mode}"
    with LocalCluster(brokers=1) as cluster:
        nameserver, [broker] = cluster.nameserver, [each.pid for each in cluster.brokers]
        assert broker is not None
        with Admin(nameserver) as admin:
            admin.create_topic(topic, queues=4)
        with service(nameserver, topic, mode) as served, Producer(nameserver) as producer:
            producer.request(Message(topic, BODY), timeout=TIMEOUT_S)
            times = one_by_one(producer, topic, max(count // 50, 100))
            p50, p99 = median(times), quantiles(times, n=100)[-1]
            yield {"way": "one by one", "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}
            pids = broker, served
            yield measured("request_async", count, pids, lambda: pipelined(producer, topic, count))
            yield measured("asyncio", count, pids, lambda: asyncio.run(gathered(nameserver, topic, count)))


@click.command()
@click.option("--count", default=40_000, show_default=True, help="Requests of each run with many under way.")
def main(count: int) -> None:
    """Print a line of JSON for each way of making requests and each mode of the service."""
    for mode in ("work_queue", "queues"):
        for row in rows_of(mode, count):
            click.echo(json.dumps({"mode": mode, **row}))


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    else:
        main()
