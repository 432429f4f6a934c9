"""A real name server with a large table, under simulated brokers, look-ups and watches.

Two tables: 20,000 topics on four of 100 brokers each, and the same topics on 20 brokers each. Brokers, look-ups and
watches run in three processes, so that they do not wait for each other; they share the machine with the name server.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import random
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click
from processes import anonymous_bytes, machine_busy_seconds
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import minimq_nameserver
from minimq import Admin
from minimq.local.server_process import ServerProcess
from minimq_common.wire import rpc
from minimq_proto.v1 import nameserver_pb2, nameserver_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

TOPICS = [f"topic-{number:05d}" for number in range(20_000)]
BROKERS = 100
#: Each stream watches its own topics, and one that all streams watch.
WATCHES, TOPICS_OF_A_WATCH = 100, 200
COMMON = TOPICS[0]

LOOK_UPS_PER_S, LOOK_UP_S = 400, 10.0
#: During the look-ups: each broker sends a heartbeat every 10 s, and some broker changes a topic twice a second.
HEARTBEAT_EVERY_S, CHANGE_EVERY_S = 0.1, 0.5
CHANGES_TO_TIME = 10
TIMEOUT_S = 300.0


@dataclass
class Line:
    """One line of the table.

    Attributes:
        name: size of the table.
        register_s: duration of the concurrent registration of all brokers.
        lookup_p50_ms: from the due time of a look-up to its answer, during heartbeats and changes; so are p99 and max.
        change_ms: until a changed topic has reached the last stream that watches it; the median of ten.
        leave_ms: until the last stream has all routes that change when a broker leaves.
        left_events: number of these routes, over all streams.
        empty_mb: resident memory of the name server before the registration.
        full_mb: resident memory with the whole table.
        machine_cpu_s: CPU of the whole machine during the look-ups.
    """

    name: str
    register_s: float
    lookup_p50_ms: float
    lookup_p99_ms: float
    lookup_max_ms: float
    change_ms: float
    leave_ms: float
    left_events: int
    empty_mb: float
    full_mb: float
    machine_cpu_s: float


# ---- brokers ------------------------------------------------------------------------------------


class SimulatedBroker:
    """A broker that only talks to name servers."""

    def __init__(self, number: int, topics: Sequence[str]) -> None:
        self.topics = topics
        self._table = nameserver_pb2.RegisterRequest(
            cluster="default",
            broker_name=f"broker-{number:03d}",
            broker_id=0,
            address=f"10.0.0.{number}:10911",
            data_version=1,
            permission=6,
            groups=[nameserver_pb2.TopicGroup(topics=topics, read_queues=4, write_queues=4, permission=6)],
        )
        self._turn = asyncio.Lock()

    async def register(self, address: str) -> None:
        self._channel = rpc.open_aio_channel(address)
        stub = cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(self._channel))
        self._stream = stub.Register()
        await self._tell(self._table)

    async def heartbeat(self) -> None:
        name, version = self._table.broker_name, self._table.data_version
        await self._tell(nameserver_pb2.RegisterRequest(broker_name=name, data_version=version, heartbeat_only=True))

    async def change(self, topic: str) -> None:
        """Add a queue to a topic, and send the whole table, as brokers do."""
        former = next(group for group in self._table.groups if topic in group.topics)
        queues = former.read_queues + 1
        former.topics.remove(topic)
        alike = [group for group in self._table.groups if group.read_queues == queues]
        group = alike[0] if alike else self._table.groups.add(read_queues=queues, write_queues=queues, permission=6)
        group.topics.append(topic)
        self._table.data_version += 1
        await self._tell(self._table)

    async def leave(self) -> None:
        await self._stream.done_writing()
        await self._channel.close()

    async def _tell(self, request: nameserver_pb2.RegisterRequest) -> None:
        async with self._turn:
            await self._stream.write(request)
            answer = await self._stream.read()
        assert isinstance(answer, nameserver_pb2.RegisterResponse), answer


@asynccontextmanager
async def living(brokers: list[SimulatedBroker]) -> AsyncIterator[None]:
    """Send heartbeats and changes during the block."""

    async def every(seconds: float, act: Callable[[SimulatedBroker], Any]) -> None:
        due = time.perf_counter()
        while True:
            await act(random.choice(brokers))
            due += seconds
            await asyncio.sleep(max(0.0, due - time.perf_counter()))

    tasks = [
        asyncio.create_task(every(HEARTBEAT_EVERY_S, lambda broker: broker.heartbeat())),
        asyncio.create_task(every(CHANGE_EVERY_S, lambda broker: broker.change(random.choice(broker.topics)))),
    ]
    yield
    for task in tasks:
        assert not task.done(), task
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- in other processes -------------------------------------------------------------------------


class Helper:
    """A function of this file in its own process, connected by a pipe."""

    def __init__(self, function: Callable[..., None], *arguments: object) -> None:
        context = multiprocessing.get_context("spawn")  # gRPC does not survive a fork
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=function, args=(theirs, *arguments), daemon=True)
        self._process.start()
        theirs.close()

    async def ask(self, question: object) -> Any:
        self._pipe.send(question)
        return await self.answer()

    async def answer(self) -> Any:
        return await asyncio.get_running_loop().run_in_executor(None, self._pipe.recv)

    def end(self) -> None:
        self._pipe.close()
        self._process.join()


def look_up(pipe: Connection, address: str) -> None:
    """On request, look up random topics at a steady rate; answer the sorted latencies in ms."""
    with rpc.open_channel(address) as channel:
        stub = nameserver_pb2_grpc.NameServerStub(channel)
        stub.GetRoutes(nameserver_pb2.GetRoutesRequest(topic=COMMON), wait_for_ready=True)
        pipe.send("ready")
        pipe.recv()
        latencies = []
        began = time.perf_counter()
        for number in range(round(LOOK_UPS_PER_S * LOOK_UP_S)):
            due = began + number / LOOK_UPS_PER_S
            time.sleep(max(0.0, due - time.perf_counter()))
            answer = stub.GetRoutes(nameserver_pb2.GetRoutesRequest(topic=random.choice(TOPICS)))
            latencies.append((time.perf_counter() - due) * 1000)
            assert answer.routes[0].queues
        pipe.send(sorted(latencies))


def watch(pipe: Connection, address: str) -> None:
    """Watch topics over many streams; on request, wait for a number of events and answer their times."""
    asyncio.run(_watch(pipe, address))


async def _watch(pipe: Connection, address: str) -> None:
    arrivals: list[float] = []
    arrived = asyncio.Event()

    async def follow(number: int) -> None:
        own = TOPICS[number * TOPICS_OF_A_WATCH : (number + 1) * TOPICS_OF_A_WATCH]
        async with rpc.open_aio_channel(address) as channel:
            stub = cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(channel))
            stream = stub.WatchRoutes()
            await stream.write(nameserver_pb2.WatchRoutesRequest(topics=[COMMON, *own]))
            async for _ in stream:
                arrivals.append(time.perf_counter())
                arrived.set()

    tasks = [asyncio.create_task(follow(number)) for number in range(WATCHES)]
    with ThreadPoolExecutor(1) as pool:
        while True:
            try:
                wanted = await asyncio.get_running_loop().run_in_executor(pool, pipe.recv)
            except EOFError:
                break
            while len(arrivals) < wanted:
                arrived.clear()
                await arrived.wait()
            pipe.send(arrivals[:wanted])
            del arrivals[:wanted]
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


# ---- the scenario -------------------------------------------------------------------------------


@contextmanager
def name_server() -> Iterator[ServerProcess]:
    with tempfile.TemporaryDirectory(prefix="minimq-") as directory:
        server = ServerProcess(
            "nameserver",
            "nameserver",
            Path(directory),
            flags=lambda address, _: [f"--listen={address}", "--start-grace=0"],
            settled=lambda: None,
        )
        server.start()
        try:
            yield server
        finally:
            server.stop()


async def measure(brokers_of_a_topic: int, tell: Callable[[str], None]) -> Line:
    """Fill a name server, and measure one line."""
    topics_of: list[list[str]] = [[] for _ in range(BROKERS)]
    for number, topic in enumerate(TOPICS):
        for place in range(brokers_of_a_topic):
            topics_of[(number * brokers_of_a_topic + place) % BROKERS].append(topic)
    brokers = [SimulatedBroker(number, topics) for number, topics in enumerate(topics_of)]
    with name_server() as server:
        assert server.pid is not None
        empty = anonymous_bytes(server.pid)
        tell("registering")
        began = time.perf_counter()
        await asyncio.gather(*(broker.register(server.address) for broker in brokers))
        register_s = time.perf_counter() - began
        full = anonymous_bytes(server.pid)
        check(server.address, brokers_of_a_topic)

        tell("looking up")
        lookups = Helper(look_up, server.address)
        await lookups.answer()
        cpu_s = machine_busy_seconds()
        async with living(brokers):
            latencies: list[float] = await lookups.ask("go")
        cpu_s = machine_busy_seconds() - cpu_s
        lookups.end()

        tell("watching")
        change_ms, leave_ms, left_events = await watched(server.address, brokers)
        for broker in brokers[1:]:
            await broker.leave()
    return Line(
        f"{len(TOPICS):,} topics on {brokers_of_a_topic} of {BROKERS} brokers each",
        register_s,
        latencies[len(latencies) // 2],
        latencies[int(len(latencies) * 0.99)],
        latencies[-1],
        change_ms,
        leave_ms,
        left_events,
        empty / 1e6,
        full / 1e6,
        cpu_s,
    )


def check(address: str, brokers_of_a_topic: int) -> None:
    """Check the table of the name server."""
    with Admin(address) as admin:
        for topic in (TOPICS[0], TOPICS[-1]):
            assert len(admin.route(topic).queues) == brokers_of_a_topic


async def watched(address: str, brokers: list[SimulatedBroker]) -> tuple[float, float, int]:
    """Return the times in ms until all streams have a change and a departure, and the events of the departure."""
    watches = Helper(watch, address)
    # Every stream first gets all routes that it watches; the first stream watches the common topic twice.
    await asyncio.wait_for(watches.ask(WATCHES * (TOPICS_OF_A_WATCH + 1) - 1), TIMEOUT_S)
    took = []
    for _ in range(CHANGES_TO_TIME):
        began = time.perf_counter()
        changing = asyncio.create_task(brokers[0].change(COMMON))
        arrivals = await asyncio.wait_for(watches.ask(WATCHES), TIMEOUT_S)
        await changing
        took.append((arrivals[-1] - began) * 1000)
    # Each of its topics is watched once, and the common one by all other streams, too.
    events = len(brokers[0].topics) + WATCHES - 1
    began = time.perf_counter()
    await brokers[0].leave()
    arrivals = await asyncio.wait_for(watches.ask(events), TIMEOUT_S)
    watches.end()
    return sorted(took)[len(took) // 2], (arrivals[-1] - began) * 1000, events


@click.command()
@click.argument("brokers_of_a_topic", nargs=-1, type=click.IntRange(1, BROKERS))
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def main(brokers_of_a_topic: tuple[int, ...], output: str) -> None:
    """Measure tables in which each topic is on BROKERS_OF_A_TOPIC brokers; 4 and 20 unless given."""
    lines = []
    with Progress(console=Console(stderr=True), refresh_per_second=1, transient=True) as progress:
        task = progress.add_task("", total=None)
        for count in brokers_of_a_topic or (4, 20):
            lines.append(
                asyncio.run(
                    measure(count, lambda what: progress.update(task, description=f"{count} brokers: {what}"))  # noqa: B023
                )
            )
    if output == "json":
        print(json.dumps([asdict(line) for line in lines], indent=2))
        return
    table = Table("table", "registered", "look-up p50", "p99", "max", "a change", "a departure", "memory", "CPU")
    for line in lines:
        table.add_row(
            line.name,
            f"{line.register_s:.2f} s",
            *(f"{ms:,.2f} ms" for ms in (line.lookup_p50_ms, line.lookup_p99_ms, line.lookup_max_ms)),
            f"{line.change_ms:,.1f} ms",
            f"{line.leave_ms:,.0f} ms, {line.left_events:,} events",
            f"{line.empty_mb:.0f} to {line.full_mb:.0f} MB",
            f"{line.machine_cpu_s:.1f} s",
        )
    console = Console(width=None if sys.stdout.isatty() else 170)
    console.print(f"\nminimq_nameserver in {Path(minimq_nameserver.__file__).parent}")
    console.print(
        f"look-ups: {LOOK_UPS_PER_S}/s for {LOOK_UP_S:g} s, beside {1 / HEARTBEAT_EVERY_S:g} heartbeats and "
        f"{1 / CHANGE_EVERY_S:g} changes per second; a change: until {WATCHES} watches know; CPU: all of the machine's"
    )
    console.print(table)


if __name__ == "__main__":
    main()
