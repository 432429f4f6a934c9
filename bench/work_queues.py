"""Work queues: rates of receiving and acknowledging, and the latency from `send` to `receive`.

    .venv/bin/python bench/work_queues.py [--peers] [names]

With --peers, Redis Streams and quorum queues of RabbitMQ do the same work in the same run, with the same numbers of
consumers and of unconfirmed acks. That needs redis-server and rabbitmq-server on this machine.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import click
from processes import Workload, cpu_seconds
from rich.console import Console
from rich.table import Table
from work_queue_peers import RabbitMQ, Redis
from work_queue_workers import GROUP, TOPIC
from workloads import Result

from minimq import Admin, LocalCluster, Message, Producer, WorkQueueConsumer

SCRIPT = "work_queue_workers.py"
Row = tuple[str, ...]


def run(*workers: Workload) -> list[Result]:
    """Start workers that are ready, and return their results."""
    for worker in workers:
        worker.go()
    return [worker.result() for worker in workers]


def row(name: str, results: list[Result], server_cpu_s: float, note: str = "") -> Row:
    count = sum(result["count"] for result in results)
    seconds = max(result["ended"] for result in results) - min(result["began"] for result in results)
    client_cpu_s = sum(result["cpu_s"] for result in results)
    per_million = (f"{cpu_s / count * 1e6:.2f}" for cpu_s in (client_cpu_s, server_cpu_s))
    return (name, f"{count / seconds:,.0f}", *per_million, note)


@contextmanager
def filled(queues: int, count: int) -> Iterator[LocalCluster]:
    """Run one broker with `count` messages of 100 bytes."""
    with LocalCluster(brokers=1) as cluster:
        with Admin(cluster.nameserver) as admin:
            admin.create_topic(TOPIC, queues=queues)
        with Producer(cluster.nameserver) as producer:
            producer.send_many(Message(TOPIC, bytes(100)) for _ in range(count))
        yield cluster


def broker_pid(cluster: LocalCluster) -> int:
    [broker] = cluster.brokers
    assert broker.pid
    return broker.pid


def taken(name: str, count: int, most: int, processes: int, consumers: int = 1, queues: int = 8) -> Row:
    """Receive and acknowledge all messages, with `consumers` in each process."""
    with filled(queues, count) as cluster:
        arguments = {"nameserver": cluster.nameserver, "most": most, "consumers": consumers}
        workers = [Workload("minimq", SCRIPT, **arguments) for _ in range(processes)]
        before = cpu_seconds(broker_pid(cluster))
        results = run(*workers)
        assert sum(result["count"] for result in results) >= count
        return row(name, results, cpu_seconds(broker_pid(cluster)) - before)


def behind(waiting: int, count: int = 100_000) -> Row:
    """Receive and acknowledge `count` messages of a queue in which `waiting` older ones wait between settled ones."""
    with filled(1, 2 * waiting + count) as cluster:
        with WorkQueueConsumer(cluster.nameserver, group=GROUP, prefetch_messages=0) as consumer:
            consumer.subscribe(TOPIC)
            left = 2 * waiting
            while left and (messages := consumer.receive(min(left, 10_000), timeout=10)):
                consumer.ack(messages[::2])
                consumer.release(messages[1::2], delay_s=43_200)
                left -= len(messages)
        worker = Workload("minimq", SCRIPT, nameserver=cluster.nameserver, most=32, consumers=4)
        before = cpu_seconds(broker_pid(cluster))
        [result] = run(worker)
        assert result["count"] >= count
        return row(f"32 a take, {waiting:,} wait", [result], cpu_seconds(broker_pid(cluster)) - before)


def delays(result: Result) -> str:
    return f"p50 {result['p50_ms']:.2f} ms, p99 {result['p99_ms']:.2f} ms"


def one_by_one(count: int) -> Row:
    """One consumer that receives a message, acknowledges it and waits for the confirmation before the next one."""
    with filled(8, count + 1) as cluster:
        worker = Workload("minimq_one", SCRIPT, nameserver=cluster.nameserver, count=count)
        before = cpu_seconds(broker_pid(cluster))
        [result] = run(worker)
        return row(ONE_BY_ONE, [result], cpu_seconds(broker_pid(cluster)) - before, delays(result))


def delay() -> Row:
    """Messages at 100/s, each received as soon as it is stored."""
    with filled(8, 0) as cluster:
        before = cpu_seconds(broker_pid(cluster))
        [result] = run(Workload("minimq_latency", SCRIPT, nameserver=cluster.nameserver, count=1000, rate=100))
        return row("send to receive, 100/s", [result], cpu_seconds(broker_pid(cluster)) - before, delays(result))


def beside(workers: int) -> Row:
    """`send_many` while `workers` processes receive 32 messages at a time."""
    with filled(8, 300_000 * workers) as cluster:
        takers = [
            Workload("minimq", SCRIPT, nameserver=cluster.nameserver, most=32, consumers=4) for _ in range(workers)
        ]
        sender = Workload("minimq_send", SCRIPT, nameserver=cluster.nameserver, count=1_000_000)
        before = cpu_seconds(broker_pid(cluster))
        for workload in (*takers, sender):
            workload.go()
        result = sender.result()
        found = row(
            f"send_many beside {workers} workers",
            [result],
            cpu_seconds(broker_pid(cluster)) - before,
            "broker: of both",
        )
        for taker in takers:
            taker.result()
        return found


def peer(kind: type[Redis | RabbitMQ], count: int, most: int, consumers: int) -> Row:
    """Receive and acknowledge all messages of another broker, with `consumers` in each of two processes."""
    with tempfile.TemporaryDirectory(prefix="minimq-bench-") as folder, kind(Path(folder)) as server:
        server.fill(TOPIC, count, bytes(100))
        arguments = {"port": server.port, "most": most, "consumers": consumers}
        workers = [Workload(kind.worker, SCRIPT, **arguments) for _ in range(2)]
        before = cpu_seconds(server.pid)
        results = run(*workers)
        assert sum(result["count"] for result in results) >= count
        name = f"{kind.name}, {most} a take, 2 processes of {consumers}"
        return row(name, results, cpu_seconds(server.pid) - before, server.note)


def peer_one_by_one(kind: type[Redis | RabbitMQ], count: int) -> Row:
    """One consumer of another broker that receives and acknowledges one message after the other."""
    with tempfile.TemporaryDirectory(prefix="minimq-bench-") as folder, kind(Path(folder)) as server:
        server.fill(TOPIC, count + 1, bytes(100))
        worker = Workload(f"{kind.worker}_one", SCRIPT, port=server.port, count=count)
        before = cpu_seconds(server.pid)
        [result] = run(worker)
        return row(f"{kind.name}, {ONE_BY_ONE}", [result], cpu_seconds(server.pid) - before, delays(result))


ONE_BY_ONE = "receive 1, ack, next; 1 consumer"
OURS: dict[str, Callable[[], Row]] = {
    "one": lambda: one_by_one(5_000),
    "take32": lambda: taken("32 a take, 2 processes of 8 consumers", 500_000, 32, 2, consumers=8),
    "take32-pair": lambda: taken("32 a take, 2 processes of 1 consumer", 200_000, 32, 2),
    "take32-lone": lambda: taken("32 a take, 1 consumer", 100_000, 32, 1),
    "take500": lambda: taken("500 a take, 2 processes of 4 consumers", 4_000_000, 500, 2, consumers=4),
    "one-queue": lambda: taken("500 a take, 4 members on one queue", 2_000_000, 500, 4, queues=1),
    "single": lambda: taken("1 a take, 1 member", 10_000, 1, 1),
    "singles": lambda: taken("1 a take, 4 members", 20_000, 1, 2, consumers=2),
    "waiting-0": lambda: behind(0),
    "waiting-1m": lambda: behind(1_000_000),
    "delay": delay,
    "beside": lambda: beside(2),
    "alone": lambda: beside(0),
}
REDIS: dict[str, Callable[[], Row]] = {
    "redis-one": lambda: peer_one_by_one(Redis, 5_000),
    "redis32": lambda: peer(Redis, 500_000, 32, 8),
    "redis32-pair": lambda: peer(Redis, 200_000, 32, 1),
    "redis500": lambda: peer(Redis, 500_000, 500, 4),
}
RABBITMQ: dict[str, Callable[[], Row]] = {
    "rabbitmq-one": lambda: peer_one_by_one(RabbitMQ, 5_000),
    "rabbitmq32": lambda: peer(RabbitMQ, 200_000, 32, 8),
    "rabbitmq32-pair": lambda: peer(RabbitMQ, 100_000, 32, 1),
}
ALL = OURS | REDIS | RABBITMQ


def check_peers(names: tuple[str, ...]) -> None:
    """Exit with an error if a server that a row needs is not installed."""
    for rows, kind in ((REDIS, Redis), (RABBITMQ, RabbitMQ)):
        if (missing := kind.missing()) and any(name in rows for name in names):
            raise click.ClickException(f"the rows of {kind.name} need {missing}")


@click.command(help=__doc__)
@click.option("--peers", is_flag=True, help="Measure Redis Streams and RabbitMQ, too.")
@click.argument("names", nargs=-1, type=click.Choice(list(ALL)))
def main(peers: bool, names: tuple[str, ...]) -> None:
    chosen = names or tuple(ALL if peers else OURS)
    check_peers(chosen)
    table = Table("what", "messages/s", "client CPU", "broker CPU", "note")
    console = Console()
    try:
        with console.status("") as status:
            for name in chosen:
                status.update(name)
                table.add_row(*ALL[name]())
    finally:  # print the results so far even if a row fails
        console.print(table)
        console.print("CPU: seconds for a million messages")


if __name__ == "__main__":
    main()
