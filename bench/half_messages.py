"""Transactions of transactional producers: throughput, latency and CPU.

    .venv/bin/python bench/half_messages.py [--seconds 5] [--at-once 64]

One broker, which syncs each commit to disk. A transaction is one half message of 100 bytes that is committed. CPU is in
microseconds of client and broker per transaction.
"""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from collections.abc import Callable
from statistics import median, quantiles

import click
from processes import cpu_seconds

from minimq import Admin, LocalCluster, Message, TransactionalProducer, TransactionResolution, aio

_BODY = bytes(100)


def unknown(_: Message) -> TransactionResolution:
    return TransactionResolution.UNKNOWN


async def tasks(nameserver: str, at_once: int, seconds: float) -> list[float]:
    """Run transactions in asyncio tasks; return their latencies in ms."""
    latencies: list[float] = []
    async with aio.TransactionalProducer(nameserver, group="bench", check=unknown) as producer:

        async def work(until: float) -> None:
            while time.perf_counter() < until:
                began = time.perf_counter()
                async with producer.transaction() as tx:
                    await tx.send(Message("t", _BODY))
                latencies.append((time.perf_counter() - began) * 1000)

        await work(time.perf_counter() + 0.2)
        latencies.clear()
        until = time.perf_counter() + seconds
        await asyncio.gather(*(work(until) for _ in range(at_once)))
    return latencies


def threads(nameserver: str, at_once: int, seconds: float) -> list[float]:
    """Run transactions in threads; return their latencies in ms."""
    latencies: list[float] = []
    with TransactionalProducer(nameserver, group="bench", check=unknown) as producer:

        def work(until: float) -> None:
            while time.perf_counter() < until:
                began = time.perf_counter()
                with producer.transaction() as tx:
                    tx.send(Message("t", _BODY))
                latencies.append((time.perf_counter() - began) * 1000)

        work(time.perf_counter() + 0.2)
        latencies.clear()
        until = time.perf_counter() + seconds
        running = [threading.Thread(target=work, args=(until,)) for _ in range(at_once)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    return latencies


def measured(cluster: LocalCluster, run: Callable[[], list[float]]) -> dict[str, float]:
    broker = cluster.brokers[0].pid or 0
    began, own, theirs = time.perf_counter(), cpu_seconds(os.getpid()), cpu_seconds(broker)
    latencies = run()
    count, took_s = len(latencies), time.perf_counter() - began
    return {
        "transactions": count,
        "per_s": round(count / took_s),
        "p50_ms": round(median(latencies), 2),
        "p99_ms": round(quantiles(latencies, n=100)[98], 2),
        "client_us": round((cpu_seconds(os.getpid()) - own) / count * 1e6),
        "broker_us": round((cpu_seconds(broker) - theirs) / count * 1e6),
    }


@click.command()
@click.option("--seconds", default=5.0, show_default=True, help="Of each run.")
@click.option("--at-once", default=64, show_default=True, help="Transactions at the same time.")
def main(seconds: float, at_once: int) -> None:
    """Measure tasks and threads, one transaction at a time and many."""
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic("t", queues=4)
        for name, number in (("one", 1), ("many", at_once)):
            result = measured(cluster, lambda number=number: asyncio.run(tasks(cluster.nameserver, number, seconds)))  # type: ignore[misc]
            print(json.dumps({"tasks": name, **result}), flush=True)
            result = measured(cluster, lambda number=number: threads(cluster.nameserver, number, seconds))  # type: ignore[misc]
            print(json.dumps({"threads": name, **result}), flush=True)


if __name__ == "__main__":
    main()
