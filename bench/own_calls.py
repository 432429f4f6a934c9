"""Counts the calls of minimq's own Python functions per operation, at client and broker.

Usage: python bench/own_calls.py [--by-name | --json]; `--by-name` lists the functions.

The operations are a `send`, a `receive(1)` with its `ack`, and the delivery of a message to a waiting consumer with its
`poll`. Each runs alone, eleven times. Timers of event loops are held back until it is over. A function's figure is the
third lowest of its counts, because other periodic work adds calls to many operations if they are slow.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import multiprocessing
import os
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from heapq import heappush
from multiprocessing.connection import Connection
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from weakref import WeakSet

from minimq import Cluster, Message, Producer, PullConsumer, WorkQueueConsumer, WorkQueueMessage
from minimq_broker.assembly import BrokerOptions
from minimq_broker.broker import Broker
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer

_ROOT = f"{Path(__file__).resolve().parents[1]}/"
_OPERATIONS, _WARM_UP = 11, 2
#: Longer than a producer's timer runs: a send that finds none starts one.
_PAUSE_S = 0.11
#: Threads that call nothing for this time are idle. Longer than the broker trusts its last check of the disk.
_IDLE_S = 0.02

_run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]
_loops = WeakSet[Any]()
_holds_timers = False

#: Number of calls by function, and of iterations of event loops by None.
Calls = Counter[str | None]
Step = Callable[[], object]
#: By thread, as each changes only its own counts.
_counts: dict[int, Counter[CodeType]] = {}


def _count(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _counts.setdefault(threading.get_ident(), Counter())[frame.f_code] += 1


def _prepare() -> None:
    """Count the calls of threads that start from now on; let no collection or forced switch of threads add some."""
    threading.setprofile(_count)
    sys.setswitchinterval(60)
    gc.disable()
    asyncio.BaseEventLoop._run_once = _run_without_timers  # type: ignore[attr-defined]


def _run_without_timers(loop: Any) -> None:
    _loops.add(loop)
    held, loop._scheduled = (loop._scheduled, []) if _holds_timers else ([], loop._scheduled)
    _run_once(loop)
    for timer in held:
        heappush(loop._scheduled, timer)


def _hold_timers(*, held: bool) -> None:
    global _holds_timers  # noqa: PLW0603 - for all loops
    if held is not _holds_timers:
        _holds_timers = held
        for loop in [*_loops]:
            loop.call_soon_threadsafe(lambda: None)  # it waits for its timers again, or no longer


def _taken() -> Calls:
    """Return the calls of own functions since the last time."""
    found = Calls()
    for counts in [*_counts.values()]:
        for code in [*counts]:
            n, path = counts.pop(code), code.co_filename.removeprefix(_ROOT)
            if code is _run_once.__code__:
                found[None] += n
            elif not path.startswith(("/", "<", ".venv", "bench/")):
                found[f"{path} {code.co_qualname}"] += n
    return found


# ---- the servers, in a process of their own --------------------------------------------------------


def _serve(pipe: Connection, folder: str) -> None:
    _prepare()
    asyncio.run(_start(pipe, folder))


async def _start(pipe: Connection, folder: str) -> None:
    nameserver = NameServer(NameServerOptions(listen="127.0.0.1:0"))
    await nameserver.start()
    options = BrokerOptions(
        data_dir=Path(folder), listen="127.0.0.1:0", nameservers=(nameserver.address,), auto_create_queues=1
    )
    await Broker(options).start()
    sys.setprofile(_count)
    pipe.send(nameserver.address)
    threading.Thread(target=_answer, args=(pipe,)).start()
    await asyncio.Event().wait()


def _answer(pipe: Connection) -> None:
    try:
        while True:
            _hold_timers(held=pipe.recv())
            pipe.send(_taken())
    finally:  # the client has ended
        os._exit(0)


# ---- the client ------------------------------------------------------------------------------------


@contextmanager
def _send(cluster: Cluster) -> Iterator[list[Step]]:
    with Producer(cluster) as producer:
        yield [lambda: producer.send(Message("sends", b"x" * 100))]


@contextmanager
def _take_and_ack(cluster: Cluster) -> Iterator[list[Step]]:
    with Producer(cluster) as producer:
        for _ in range(_WARM_UP + _OPERATIONS + 1):  # one is left, so that all takes find more
            producer.send(Message("acks", b"x" * 100))
    with WorkQueueConsumer(cluster, group="acks", prefetch_messages=0) as consumer:
        consumer.subscribe("acks")
        taken: list[WorkQueueMessage] = []
        yield [lambda: taken.extend(consumer.receive(1, timeout=60)), lambda: consumer.ack(taken.pop())]


@contextmanager
def _send_and_poll(cluster: Cluster) -> Iterator[list[Step]]:
    with Producer(cluster) as producer, PullConsumer(cluster, group="polls") as consumer:
        producer.send(Message("polls", b"x" * 100))  # creates the topic
        consumer.subscribe("polls")
        consumer.poll(timeout=60)
        yield [lambda: producer.send(Message("polls", b"x" * 100)), lambda: consumer.poll(timeout=60)]


def _measured(steps: list[Step], pipe: Connection) -> dict[str, Calls]:
    """Return the calls of an operation for each side."""
    operations: dict[str, list[Calls]] = {"client": [], "broker": []}
    for number in range(_WARM_UP + _OPERATIONS):
        time.sleep(_PAUSE_S)
        _until_idle(pipe)
        found = {"client": Calls(), "broker": Calls()}
        for step in steps:
            sys.setprofile(_count)
            step()
            sys.setprofile(None)
            for side, calls in _until_idle(pipe).items():
                found[side].update(calls)
        _both_taken(pipe, held=False)
        if number >= _WARM_UP:
            for side, calls in found.items():
                operations[side].append(calls)
    return {side: _typical(each) for side, each in operations.items()}


def _until_idle(pipe: Connection) -> dict[str, Calls]:
    found = {"client": Calls(), "broker": Calls()}
    is_idle = False
    while not is_idle:
        time.sleep(_IDLE_S)
        taken = _both_taken(pipe, held=True)
        is_idle = not any(taken.values())
        for side, calls in taken.items():
            found[side].update(calls)
    return found


def _both_taken(pipe: Connection, *, held: bool) -> dict[str, Calls]:
    _hold_timers(held=held)
    pipe.send(held)
    return {"broker": pipe.recv(), "client": _taken()}


def _typical(operations: list[Calls]) -> Calls:
    functions = {function for calls in operations for function in calls}
    return Calls({function: sorted(calls[function] for calls in operations)[2] for function in functions})


def main() -> None:
    """Run each operation repeatedly, and print its calls at client and broker."""
    faulthandler.dump_traceback_later(300, exit=True)  # held timers include the timeout of a failing send
    spawn = multiprocessing.get_context("spawn")
    pipe, other = spawn.Pipe()
    found: dict[str, dict[str, Calls]] = {}
    with tempfile.TemporaryDirectory() as folder:
        servers = spawn.Process(target=_serve, args=(other, folder), daemon=True)
        servers.start()
        other.close()
        try:
            nameserver = pipe.recv()
            _prepare()
            with Cluster(nameserver) as cluster:
                for name, operation in (("send", _send), ("take and ack", _take_and_ack), ("poll", _send_and_poll)):
                    with operation(cluster) as steps:
                        found[name] = _measured(steps, pipe)
        finally:
            servers.kill()
            servers.join()
    for side, calls in found["poll"].items():
        calls.subtract(found["send"][side])  # as it was counted together with that of its message
    _show(found)


def _show(found: dict[str, dict[str, Calls]]) -> None:
    by_side = {f"{name}: {side}": calls for name, sides in found.items() for side, calls in sides.items()}
    iterations = {name: calls.pop(None, 0) for name, calls in by_side.items()}
    if "--json" in sys.argv:
        print(json.dumps({name: calls.total() for name, calls in by_side.items()}))
        return
    for name, calls in by_side.items():
        print(f"{name} {calls.total()} calls in {iterations[name]} iterations of its event loop")
        if "--by-name" in sys.argv:
            for function, n in calls.most_common():
                print(f"{n:5} {function}")


if __name__ == "__main__":
    main()
