"""Compares a lone `send` with a bare gRPC stream: one LMDB commit per message on the server's event loop, nothing else.

The difference of both medians in the same round is minimq's own cost; the rest is the transport and the disk.
"""

from __future__ import annotations

import asyncio
import json
import queue
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import count as numbers
from pathlib import Path
from statistics import median
from typing import Any

import click
import grpc.aio
import lmdb
from processes import Meter, run
from rich.console import Console
from rich.table import Table
from workloads import Result, outcome, start_line

from minimq import Admin, LocalCluster

METHOD = "/bare/Append"
WARM_UP = 50
TIMEOUT_S = 60.0
#: Size of a batch with one message of `send_one_by_one`.
MESSAGE_BYTES = 180


# ---- the server of the bare stream, in a process of its own -------------------------------------------


def serve(folder: str) -> None:
    """Commit and acknowledge each message, until stdin is closed."""
    asyncio.run(serve_async(folder))


async def serve_async(folder: str) -> None:
    store = lmdb.open(f"{folder}/bare.mdb", subdir=False, map_size=1 << 30)
    positions = numbers()

    async def append(_: object, context: Any) -> None:
        while (message := await context.read()) is not grpc.aio.EOF:
            with store.begin(write=True) as transaction:  # synced at its end
                transaction.put(next(positions).to_bytes(8, "big"), message, append=True)
            await context.write(b"")

    handler: Any = grpc.stream_stream_rpc_method_handler(append)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("bare", {"Append": handler})])
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(port, flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await server.stop(None)


# ---- its client, with the same threads as a producer --------------------------------------------------


class BareProducer:
    """Sends one message after the other from the caller's thread through an event loop on another thread."""

    def __init__(self, port: int) -> None:
        self._loop = asyncio.new_event_loop()
        self._answers: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._send = self._run(self._open(port))

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _open(self, port: int) -> Callable[[bytes], None]:
        self._channel = grpc.aio.insecure_channel(f"127.0.0.1:{port}")
        messages: asyncio.Queue[bytes] = asyncio.Queue()
        self._serving = asyncio.create_task(self._serve(messages))
        return messages.put_nowait

    async def _serve(self, messages: asyncio.Queue[bytes]) -> None:
        call: Any = self._channel.stream_stream(METHOD)()
        while True:
            await call.write(await messages.get())
            self._answers.put(await call.read())

    def send(self, message: bytes) -> None:
        """Send a message, and wait until it is on disk."""
        self._loop.call_soon_threadsafe(self._send, message)
        self._answers.get(timeout=TIMEOUT_S)

    def close(self) -> None:
        """Close the connection, and end the loop's thread."""
        self._serving.cancel()
        self._run(self._channel.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()


def send(port: int, count: int, size: int) -> Result:
    """Send messages one after the other."""
    producer = BareProducer(port)
    message = bytes(size)
    for _ in range(WARM_UP):
        producer.send(message)
    began = start_line()
    took = []
    for _ in range(count):
        since = time.perf_counter()
        producer.send(message)
        took.append((time.perf_counter() - since) * 1000)
    took.sort()
    found = outcome(began, count, **{f"p{q}_ms": took[count * q // 100] for q in (50, 99)})
    producer.close()
    return found


# ---- the comparison -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Side:
    """A running server, and the workload that sends to it."""

    pid: int
    workload: str
    arguments: dict[str, Any]

    def measure(self, count: int) -> dict[str, float]:
        """Send messages one after the other; times in ms, CPU in ms per message."""
        with Meter([self.pid]) as usage:
            result = run(self.workload, count=count, **self.arguments)
        per_send = {"client CPU": result["cpu_s"], "server CPU": usage.server_cpu_s}
        return {
            "p50": result["p50_ms"],
            "p99": result["p99_ms"],
            "messages/s": count / result["seconds"],
            **{name: seconds / count * 1000 for name, seconds in per_send.items()},
        }


@contextmanager
def bare() -> Iterator[Side]:
    """Start the server of the bare stream."""
    with tempfile.TemporaryDirectory(prefix="minimq-bench-") as folder:
        command = [sys.executable, __file__, "serve", folder]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            port = int(process.stdout.readline())
            yield Side(process.pid, "send", {"script": Path(__file__).name, "port": port, "size": MESSAGE_BYTES})
            process.communicate()


@contextmanager
def minimq() -> Iterator[Side]:
    """Start a broker with its default options."""
    with LocalCluster(brokers=1) as cluster, Admin(cluster.nameserver) as admin:
        admin.create_topic("lone", queues=8)
        [pid] = [broker.pid for broker in cluster.brokers if broker.pid is not None]
        yield Side(pid, "send_one_by_one", {"nameserver": cluster.nameserver, "topic": "lone"})


SIDES = {"bare stream": bare, "minimq": minimq}


@click.command(help=__doc__)
@click.option("--rounds", default=3, show_default=True, help="How often, in turn; medians are shown.")
@click.option("--count", default=3000, show_default=True, help="Messages of each side and round.")
def main(rounds: int, count: int) -> None:
    found: dict[str, list[dict[str, float]]] = {name: [] for name in SIDES}
    for number in range(rounds):
        for name in SIDES if number % 2 == 0 else reversed(SIDES):
            with SIDES[name]() as side:
                found[name].append(side.measure(count))
    own = median(
        ours["p50"] - theirs["p50"] for theirs, ours in zip(found["bare stream"], found["minimq"], strict=True)
    )
    table = Table("", *found["minimq"][0], title=f"medians of {rounds} rounds; times in ms, CPU in ms per message")
    for name, results in found.items():
        medians = {figure: median(result[figure] for result in results) for figure in results[0]}
        table.add_row(name, *(f"{value:,.0f}" if value > 100 else f"{value:.2f}" for value in medians.values()))
    console = Console()
    console.print(table)
    console.print(f"own cost: p50 of minimq less p50 of the bare stream in the same round: {own:.2f} ms")


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        serve(*sys.argv[2:])
    elif sys.argv[1:2] == ["send"]:
        print(json.dumps(send(**json.loads(sys.argv[2]))), flush=True)
    else:
        main()
