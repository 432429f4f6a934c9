"""Concurrent transactions of a producer, and the cost of transactions for a pipeline.

    .venv/bin/python bench/transactions.py [--seconds 5] [--at-once 64] [--rate 5000]

One broker, which syncs each commit to disk. A transaction has one message for each of two topics. Transactions run as
fast as the broker commits, in one task and in many; and in many tasks at a fixed rate, like requests to a service. The
pipeline consumes messages of 100 bytes, thousands at a time, and sends one for each: in transactions, and with
`send_many` and `commit`. CPU is in microseconds of client and broker per transaction or message.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable
from statistics import median

import click
from processes import cpu_seconds

from minimq import Admin, LocalCluster, Message, Producer, PullConsumer, aio

_BODY = bytes(100)


def cpu_s(cluster: LocalCluster) -> tuple[float, float]:
    """Return the CPU seconds of this process and of the broker."""
    return cpu_seconds(os.getpid()), cpu_seconds(cluster.brokers[0].pid or 0)


async def many(nameserver: str, at_once: int, seconds: float, rate: float = 0) -> tuple[int, float, list[float]]:
    """Commit transactions for some seconds; return their number, the duration, and the latencies in ms.

    With a rate, transactions have due times, and latencies count from these.
    """
    latencies: list[float] = []
    async with aio.Producer(nameserver) as producer:

        async def one() -> None:
            async with producer.transaction() as tx:
                tx.send(Message("left", _BODY))
                tx.send(Message("right", _BODY))

        await one()
        began = time.perf_counter()

        async def again(number: int) -> None:
            due = began + number / rate if rate else time.perf_counter()
            while due < began + seconds:
                await asyncio.sleep(max(due - time.perf_counter(), 0))
                await one()
                latencies.append((time.perf_counter() - due) * 1_000)
                due = due + at_once / rate if rate else time.perf_counter()

        await asyncio.gather(*(again(number) for number in range(at_once)))
        return len(latencies), time.perf_counter() - began, latencies


def with_transactions(producer: Producer, consumer: PullConsumer) -> int:
    with producer.transaction(consumer) as tx:
        messages = tx.receive(10.0)
        for message in messages:
            tx.send(Message("left", message.body))
    return len(messages)


def without(producer: Producer, consumer: PullConsumer) -> int:
    messages = consumer.poll(10.0)
    producer.send_many(Message("left", message.body) for message in messages)
    consumer.commit()
    return len(messages)


def pipeline(nameserver: str, group: str, step: Callable[[Producer, PullConsumer], int], count: int) -> float:
    """Consume `count` messages and send as many; return the seconds."""
    with Producer(nameserver) as producer, PullConsumer(nameserver, group=group, auto_commit=False) as consumer:
        consumer.subscribe("source")
        done = step(producer, consumer)
        first, began = done, time.perf_counter()
        while done < count:
            done += step(producer, consumer)
        return (time.perf_counter() - began) * count / (done - first)


@click.command()
@click.option("--seconds", default=5.0, help="Of each measurement of transactions.")
@click.option("--at-once", default=64, help="Transactions under way.")
@click.option("--rate", default=5_000.0, help="Transactions in a second, where they come at a fixed rate.")
@click.option("--messages", default=400_000, help="Of the pipeline.")
@click.option("--runs", default=3)
def main(seconds: float, at_once: int, rate: float, messages: int, runs: int) -> None:
    """Print the results as lines of JSON."""
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            for topic in ("source", "left", "right"):
                admin.create_topic(topic, queues=2)
        for number, pace in ((1, 0.0), (at_once, 0.0), (at_once, rate)):
            before = cpu_s(cluster)
            count, took_s, latencies = asyncio.run(many(cluster.nameserver, number, seconds, pace))
            client, broker = (1e6 * (after - was) / count for after, was in zip(cpu_s(cluster), before, strict=True))
            line = {
                "at_once": number,
                "rate": pace or "as fast as they are committed",
                "transactions_per_s": round(count / took_s),
                "p50_ms": round(median(latencies), 2),
                "p99_ms": round(sorted(latencies)[len(latencies) * 99 // 100], 2),
                "client_cpu_us": round(client),
                "broker_cpu_us": round(broker),
            }
            print(json.dumps(line), flush=True)
        with Producer(cluster.nameserver) as producer:
            producer.send_many(Message("source", _BODY) for _ in range(messages))
        rates: dict[str, list[float]] = {"transactions": [], "without": []}
        for number in range(runs):
            for name, step in (("transactions", with_transactions), ("without", without)):
                group = f"{name}-{number}"
                rates[name].append(messages / pipeline(cluster.nameserver, group, step, messages))
        pairs = [ours / theirs for ours, theirs in zip(*rates.values(), strict=True)]
        found = {f"{name}_per_s": round(median(each)) for name, each in rates.items()}
        print(json.dumps({"pipeline": found, "ratio": round(median(pairs), 2)}), flush=True)


if __name__ == "__main__":
    main()
