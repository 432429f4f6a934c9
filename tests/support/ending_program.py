"""A program that uses every kind of client, and ends them in the way that its second argument names.

The third argument is its topic, and begins the names of its groups. It prints "ready" once all clients are in use,
waits for a line on stdin, and prints each error that an end raises.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
import signal
import sys
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from typing import Any

from minimq import (
    Admin,
    Cluster,
    ConsumeResult,
    Message,
    Producer,
    PullConsumer,
    PushConsumer,
    TransactionalProducer,
    TransactionResolution,
    WorkQueueConsumer,
    aio,
)

TOPIC = sys.argv[3]


def opened(nameserver: str) -> dict[str, Any]:
    """Return clients that are in use, by name."""
    cluster = Cluster(nameserver)
    with Admin(cluster) as admin:
        admin.describe_topic(TOPIC)
    producer = Producer(nameserver)
    producer.send(Message(TOPIC, b"espresso"))
    pull = PullConsumer(nameserver, group=f"{TOPIC}-pull")
    pull.subscribe(TOPIC)
    while not pull.poll(1.0):
        pass
    pull.poll(0.0)  # its message is to be committed
    push = [
        PushConsumer(nameserver, group=f"{TOPIC}-push"),
        PushConsumer(nameserver, group=f"{TOPIC}-work", mode="work_queue"),
    ]
    for each in push:
        each.subscribe(TOPIC)
        each.start(lambda _: ConsumeResult.SUCCESS)
    simple = WorkQueueConsumer(nameserver, group=f"{TOPIC}-simple")
    simple.subscribe(TOPIC)
    while not simple.receive(1):
        pass
    transactional = TransactionalProducer(
        nameserver, group=f"{TOPIC}-shop", check=lambda _: TransactionResolution.COMMIT
    )
    with transactional.transaction() as transaction:
        transaction.send(Message(TOPIC, b"ristretto"))
    admin = Admin(nameserver)
    admin.describe_topic(TOPIC)
    clients = [producer, pull, *push, simple, transactional, admin, cluster]
    return {f"{number} {type(each).__name__}": each for number, each in enumerate(clients)}


async def opened_for_asyncio(nameserver: str) -> dict[str, Any]:
    """Return clients of asyncio that are in use, by name."""
    producer = aio.Producer(nameserver)
    await producer.send(Message(TOPIC, b"espresso"))
    pull = aio.PullConsumer(nameserver, group=f"{TOPIC}-aio-pull")
    pull.subscribe(TOPIC)
    while not await pull.poll(1.0):
        pass
    await pull.poll(0.0)
    push = aio.PushConsumer(nameserver, group=f"{TOPIC}-aio-push")
    push.subscribe(TOPIC)

    async def listen(_: object) -> ConsumeResult:
        return ConsumeResult.SUCCESS

    await push.start(listen)
    simple = aio.WorkQueueConsumer(nameserver, group=f"{TOPIC}-aio-simple")
    simple.subscribe(TOPIC)
    while not await simple.receive(1):
        pass
    transactional = aio.TransactionalProducer(
        nameserver, group=f"{TOPIC}-aio-shop", check=lambda _: TransactionResolution.COMMIT
    )
    async with transactional.transaction() as transaction:
        await transaction.send(Message(TOPIC, b"ristretto"))
    admin = aio.Admin(nameserver)
    await admin.describe_topic(TOPIC)
    return {f"aio {type(each).__name__}": each for each in (producer, pull, push, simple, transactional, admin)}


class Owner:
    """Has a client, and closes it in its finalizer, wherever that runs."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def __del__(self) -> None:
        self.client.close()


def wait_for_servers() -> None:
    """Wait until the test has done with the servers what it wants."""
    print("ready", flush=True)
    sys.stdin.readline()


def try_end(name: str, end: Callable[[], object]) -> None:
    """Print the error of an end."""
    try:
        end()
    except Exception as error:  # noqa: BLE001 - the test compares what is printed
        print(name, type(error).__name__, error, flush=True)


def leave(client: Any) -> None:
    """Leave a `with` block."""
    with client:
        pass


def drop_cycle(owner: Owner) -> None:
    """Leave a reference cycle that only the garbage collector ends."""
    cycle: list[object] = [owner]
    cycle.append(cycle)


def run(nameserver: str, end: str) -> None:
    """End the blocking clients."""
    clients = opened(nameserver)
    wait_for_servers()
    if end in ("with", "close"):
        for name, client in clients.items():
            try_end(name, partial(leave, client) if end == "with" else client.close)
    elif end == "atexit":
        for name, client in clients.items():
            atexit.register(try_end, name, client.close)
    elif end == "__del__":
        globals()["owners"] = [Owner(client) for client in clients.values()]
    elif end == "garbage":
        while clients:
            drop_cycle(Owner(clients.popitem()[1]))
        gc.collect()
    elif end == "exit":
        globals()["kept"] = clients
    else:
        wait_for_signal(clients)


def wait_for_signal(clients: dict[str, Any]) -> None:
    """Wait in a call of a client within the blocks of all."""
    with ExitStack() as stack:
        for client in clients.values():
            stack.enter_context(client)
        pull = next(client for client in clients.values() if isinstance(client, PullConsumer))
        print("waits", flush=True)
        while True:
            pull.poll(60.0)


async def run_in_asyncio(nameserver: str, end: str) -> None:
    """End the clients of asyncio."""
    clients = await opened_for_asyncio(nameserver)
    await asyncio.to_thread(wait_for_servers)
    if end in ("with", "close"):
        for name, client in clients.items():
            work = leave_async(client) if end == "with" else client.close()
            await try_end_async(name, work)
    elif end == "signal":
        async with AsyncExitStack() as stack:
            for client in clients.values():
                await stack.enter_async_context(client)
            print("waits", flush=True)
            while True:
                await clients["aio PullConsumer"].poll(60.0)


async def leave_async(client: Any) -> None:
    """Leave an `async with` block."""
    async with client:
        pass


async def try_end_async(name: str, end: Coroutine[Any, Any, object]) -> None:
    """Print the error of an end."""
    try:
        await end
    except Exception as error:  # noqa: BLE001 - the test compares what is printed
        print(name, type(error).__name__, error, flush=True)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    address, way = sys.argv[1:3]
    if way.startswith("aio "):
        asyncio.run(run_in_asyncio(address, way.removeprefix("aio ")))
    else:
        run(address, way)
