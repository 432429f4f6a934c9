"""`minimq bench`: the speed of a cluster, as seen from this machine."""

from __future__ import annotations

import signal
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from typing import TYPE_CHECKING, Annotated

import click

from minimq.admin.operation import Param
from minimq.admin.views import Row, Rows, Table, View, columns
from minimq_cli.commands import LIMIT, Output, declared, show
from minimq_common.errors import DeadlineExceeded
from minimq_common.model import Message

if TYPE_CHECKING:
    from minimq.consumer import PullConsumer
    from minimq.consuming.received import ReceivedMessage

_RATE = Table(
    "nothing was measured",
    columns(
        "what messages body_bytes seconds messages_per_s mb_per_s cpu_s_per_million",
        messages_per_s="Messages/s",
        mb_per_s="MB/s",
        cpu_s_per_million="CPU s per million",
    ),
)
_LATENCY = Table(
    "nothing was measured",
    columns("what mean p50 p90 p99 max", what="Milliseconds until", p50="p50", p90="p90", p99="p99"),
)

#: Queues on each broker of the topic, and maximum number of messages in a batch.
_QUEUES, _BATCH = 4, 4096
_POLL_S = 1.0
#: Maximum seconds without a message.
_TIMEOUT_S = 30.0

Limit = Annotated[int, replace(LIMIT, help="Number of messages.")]
Size = Annotated[int, Param(low=1, metavar="BYTES", help="Size of a body.")]


@declared("produce", "Measure sending in batches.")
def bench_produce(nameserver: str, *, limit: Limit = 1_000_000, size: Size = 100, output: Output = "table") -> None:
    """Send messages in batches, each acknowledged when it is on disk.

    Example: minimq bench produce --limit 1000000 --size 100
    """
    with _topic(nameserver) as name:
        _show_rate(output, "produce", limit, size, *_fill(nameserver, name, limit, size))


@declared("consume", "Measure reading.")
def bench_consume(nameserver: str, *, limit: Limit = 1_000_000, size: Size = 100, output: Output = "table") -> None:
    """Read messages of a new topic that is filled first; filling is not measured.

    Example: minimq bench consume --limit 1000000
    """
    from minimq.admin.admin import Admin
    from minimq.consumer import PullConsumer

    with _topic(nameserver) as name:
        _fill(nameserver, name, limit, size)
        with Admin(nameserver) as admin:
            description = admin.describe_topic(name)
        count = limit
        with PullConsumer(nameserver, group="minimq-bench", auto_commit=False) as consumer:
            began, cpu = time.monotonic(), time.process_time()
            consumer.assign([item.queue for item in description.queues])
            for item in description.queues:
                consumer.seek(item.queue, item.min_offset)
            received = read_bytes = 0
            while received < count:
                messages = _received(consumer, min(100_000, count - received), f"{received:,} of {count:,}")
                received += len(messages)
                read_bytes += sum(len(message.body) for message in messages)
            seconds, cpu = time.monotonic() - began, time.process_time() - cpu
        _show_rate(output, "consume", received, read_bytes / max(received, 1), seconds, cpu)


@declared("latency", "Measure the time until a receipt, and until delivery.")
def bench_latency(nameserver: str, *, limit: Limit = 1_000, size: Size = 100, output: Output = "table") -> None:
    """Send one message after the other, and measure the time until its receipt and until a waiting consumer has it.

    Example: minimq bench latency --limit 2000
    """
    from minimq.admin.admin import Admin
    from minimq.consumer import PullConsumer
    from minimq.producer import Producer

    acknowledged: list[float] = []
    delivered: list[float] = []
    with (
        _topic(nameserver) as name,
        Producer(nameserver) as producer,
        PullConsumer(nameserver, group="minimq-bench", start="latest", auto_commit=False) as consumer,
        Admin(nameserver) as admin,
    ):
        ends = {item.queue: item.max_offset for item in admin.describe_topic(name).queues}
        consumer.assign(ends)
        for queue, offset in ends.items():
            consumer.seek(queue, offset)
        message = Message(name, bytes(size))
        producer.send(message)  # connected, and the route is known
        _received(consumer, 1, "the first message")
        for number in range(limit):
            began = time.perf_counter()
            producer.send(message)
            acknowledged.append(time.perf_counter() - began)
            _received(consumer, 1, f"{number:,} of {limit:,}")
            delivered.append(time.perf_counter() - began)
    rows = [_percentiles("acknowledged", acknowledged), _percentiles("delivered", delivered)]
    show(View(json=rows, lines=[Rows(_LATENCY, rows)]), output)


bench = click.Group(
    "bench",
    [bench_produce, bench_consume, bench_latency],
    help="Measure throughput and latency; CPU time is that of the client process alone.",
    short_help="Measure throughput and latency.",
)


@contextmanager
def _topic(nameserver: str) -> Iterator[str]:
    """Yield a new topic, deleted at the end."""
    from secrets import token_hex

    from minimq.admin.admin import Admin

    name = f"minimq-bench-{token_hex(4)}"
    with Admin(nameserver) as admin:
        admin.create_topic(name, _QUEUES)
        # SIGTERM acts as Ctrl-C, so that `timeout 60 minimq bench` leaves no topic.
        former = signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            yield name
        finally:
            signal.signal(signal.SIGTERM, former)
            admin.delete_topic(name)


def _received(consumer: PullConsumer, most: int, progress: str) -> Sequence[ReceivedMessage]:
    give_up = time.monotonic() + _TIMEOUT_S
    while not (messages := consumer.poll(_POLL_S, most)):
        if time.monotonic() > give_up:
            raise DeadlineExceeded(f"no message arrived for {_TIMEOUT_S} s, after {progress}")
    return messages


def _fill(nameserver: str, topic: str, count: int, size: int) -> tuple[float, float]:
    """Send messages, and return the elapsed seconds and the CPU seconds."""
    from minimq.producer import Producer

    message = Message(topic, bytes(size))
    with Producer(nameserver, batch_messages=_BATCH) as producer:
        producer.send(message)  # connected, and the route is known
        began, cpu = time.monotonic(), time.process_time()
        producer.send_many(repeat(message, count))
        return time.monotonic() - began, time.process_time() - cpu


def _show_rate(output: str, what: str, count: int, size: float, seconds: float, cpu: float) -> None:
    row: Row = {
        "what": what,
        "messages": count,
        "body_bytes": round(size),
        "seconds": round(seconds, 3),
        "messages_per_s": round(count / seconds),
        "mb_per_s": round(count * size / seconds / 1e6, 1),
        "cpu_s_per_million": round(cpu / max(count, 1) * 1e6, 3),
    }
    show(View(json=[row], lines=[Rows(_RATE, [row])]), output)


def _percentiles(what: str, seconds: list[float]) -> Row:
    ordered = sorted(item * 1000 for item in seconds)

    def at(share: float) -> float:
        return round(ordered[min(int(share * len(ordered)), len(ordered) - 1)], 3)

    mean = round(statistics.fmean(ordered), 3)
    return {"what": what, "mean": mean, "p50": at(0.5), "p90": at(0.9), "p99": at(0.99), "max": at(1)}
