"""A program whose forks find the clients of their parent: NAMESERVER. It tells in JSON what became of each use."""

from __future__ import annotations

import asyncio
import gc
import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from minimq import Admin, ConsumeResult, Message, Producer, PullConsumer, PushConsumer, aio
from minimq.consuming.queue_finder import QueueFinder
from minimq.consuming.range_reader import RangeReader
from minimq.features.transactions.decisions import Transaction
from minimq.features.transactions.transactions import RecordsSender, TransactionCommitter
from minimq_common.batch.builder import BatchBuilder

#: A child that hangs is ended so late, in seconds.
_HANGS_S = 60


def in_fork(uses: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Return what each use comes to in a fork, which ends as any program does."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        signal.alarm(_HANGS_S)
        os.write(writing, json.dumps({name: outcome(use) for name, use in uses.items()}).encode())
        sys.exit(0)
    os.close(writing)
    with os.fdopen(reading) as told:
        text = told.read()
    status = os.waitpid(child, 0)[1]
    return json.loads(text) if status == 0 else {"the fork": f"ended with status {status}"}


def outcome(use: Callable[[], object]) -> str:
    """Return what a use comes to."""
    try:
        use()
    except Exception as error:  # noqa: BLE001 - it is told
        return f"{type(error).__name__}: {error}"
    return "done"


def awaited(make: Callable[[], Coroutine[Any, Any, object]]) -> Callable[[], object]:
    """Return a use that awaits something on a loop of its own."""
    return lambda: asyncio.run(make())


def records() -> BatchBuilder:
    """Return a batch of one message."""
    batch = BatchBuilder(1 << 20)
    batch.add([Message("t", b"x")])
    return batch


def main(nameserver: str) -> None:
    """Make clients that are connected, use each of them in forks, and see that they still work here."""
    admin = Admin(nameserver)
    admin.create_topic("t", queues=1)
    producer, sender = Producer(nameserver), RecordsSender(nameserver)
    queue = producer.send(Message("t", b"1")).queue
    sender.send("t", None, records()).result()
    pull = PullConsumer(nameserver, group="pull")
    pull.subscribe("t")
    while not pull.poll(1.0):
        pass
    push = PushConsumer(nameserver, group="push")
    push.subscribe("t")
    push.start(lambda _: ConsumeResult.SUCCESS)
    ranges, finder, committer = RangeReader(nameserver), QueueFinder(nameserver), TransactionCommitter(nameserver)
    ranges.bounds(queue)
    finder.find(["t"])
    committer.commit(Transaction("row", 0), ["t"], ())
    aio_producer = aio.Producer(nameserver)
    asyncio.run(aio_producer.send(Message("t", b"1")))

    async def make_pull() -> aio.PullConsumer:
        consumer = aio.PullConsumer(nameserver, group="aio")
        consumer.subscribe("t")
        await consumer.poll(0.1)
        return consumer

    aio_pull = asyncio.run(make_pull())
    closes: dict[str, Callable[[], object]] = {
        "Admin": admin.close,
        "Producer": producer.close,
        "RecordsSender": sender.close,
        "PullConsumer": pull.close,
        "PushConsumer": push.close,
        "RangeReader": ranges.close,
        "QueueFinder": finder.close,
        "TransactionCommitter": committer.close,
        "aio.Producer": awaited(aio_producer.close),
        "aio.PullConsumer": awaited(aio_pull.close),
    }
    uses: dict[str, Callable[[], object]] = {
        "Admin.list_topics": admin.list_topics,
        "Producer.send": lambda: producer.send(Message("t", b"2")),
        "Producer.send_many": lambda: producer.send_many([Message("t", b"2")]),
        "Producer.flush": producer.flush,
        "Producer.statistics": producer.statistics,
        "RecordsSender.send": lambda: sender.send("t", None, records()),
        "PullConsumer.poll": pull.poll,
        "PullConsumer.commit": pull.commit,
        "PullConsumer.assignment": lambda: pull.assignment,
        "PushConsumer.start": lambda: push.start(lambda _: ConsumeResult.SUCCESS),
        "RangeReader.bounds": lambda: ranges.bounds(queue),
        "QueueFinder.find": lambda: finder.find(["t"]),
        "QueueFinder.topics": finder.topics,
        "TransactionCommitter.commit": lambda: committer.commit(Transaction("row", 1), ["t"], ()),
        "aio.Producer.send": awaited(lambda: aio_producer.send(Message("t", b"2"))),
        "aio.Producer.flush": awaited(aio_producer.flush),
        "aio.PullConsumer.poll": awaited(aio_pull.poll),
    }
    told: dict[str, object] = {
        "closes": in_fork(closes),
        "uses": in_fork(uses),
        "nothing": in_fork({"gc.collect": gc.collect}),
    }
    with multiprocessing.get_context("fork").Pool(2) as pool:
        told["pool"] = pool.map(abs, [1, -2])
    producer.send(Message("t", b"last"))
    while not any(message.body == b"last" for message in pull.poll(1.0)):
        pass
    for client in (admin, producer, sender, pull, push, ranges, finder, committer):
        client.close()
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main(sys.argv[1])
