"""Counts the calls of minimq's own Python functions per operation, at client and broker.

Usage: python bench/own_calls.py [--by-name | --json] [send] [ack] [poll]; `--by-name` lists the functions.

An operation is one message: `send`, `receive(1)` with its `ack`, or `poll`. Operations are counted in groups of
ten, and the cheapest group is reported: other load on the machine splits and delays work, which adds calls to some
groups.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from minimq import Admin, Message, Producer, PullConsumer, WorkQueueConsumer
from minimq_broker.broker import Broker
from minimq_broker.options import BrokerOptions
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer

_ROOT = Path(__file__).parents[1]
_GROUPS, _WARM_UP, _SIZE = 40, 10, 10
#: Number of calls by thread and code.
_counts: dict[int, Counter[CodeType]] = {}
_rounds: Counter[int] = Counter()


def _count(frame: FrameType, event: str, _: object) -> None:
    if event == "call":
        _counts.setdefault(threading.get_ident(), Counter())[frame.f_code] += 1


def _count_rounds() -> None:
    run_once = asyncio.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def counted(self: Any) -> None:
        _rounds[threading.get_ident()] += 1
        run_once(self)

    asyncio.BaseEventLoop._run_once = counted  # type: ignore[attr-defined]


def _is_own(code: CodeType) -> bool:
    return (
        code.co_filename.startswith(str(_ROOT)) and "/.venv/" not in code.co_filename and code.co_filename != __file__
    )


async def _start(folder: str) -> tuple[NameServer, Broker]:
    nameserver = NameServer(NameServerOptions(listen="127.0.0.1:0"))
    await nameserver.start()
    broker = Broker(BrokerOptions(data_dir=Path(folder), listen="127.0.0.1:0", nameservers=(nameserver.address,)))
    await broker.start()
    return nameserver, broker


@contextmanager
def _sends(nameserver: str) -> Iterator[Callable[[], object]]:
    with Producer(nameserver) as producer:
        yield lambda: producer.send(Message("t", b"x" * 100))


@contextmanager
def _acks(nameserver: str) -> Iterator[Callable[[], object]]:
    _fill(nameserver)
    with WorkQueueConsumer(nameserver, group="acks") as consumer:
        consumer.subscribe("t")
        yield lambda: consumer.ack(consumer.receive(1, timeout=10))


@contextmanager
def _polls(nameserver: str) -> Iterator[Callable[[], object]]:
    _fill(nameserver)
    with PullConsumer(nameserver, group="polls") as consumer:
        consumer.subscribe("t")
        yield lambda: consumer.poll(timeout=10, max_messages=1)


def _fill(nameserver: str) -> None:
    with Producer(nameserver) as producer:
        for _ in range(_GROUPS * _SIZE):
            producer.send(Message("t", b"x" * 100))


_OPERATIONS = {"send": _sends, "ack": _acks, "poll": _polls}


def _counted(act: Callable[[], object], servers: set[int]) -> tuple[dict[str, Counter[CodeType]], int]:
    """Return the calls of each side and the iterations of the broker's loop, in the cheapest group of operations."""
    groups = []
    sys.setprofile(_count)
    for number in range(_GROUPS):
        _counts.clear()
        _rounds.clear()
        for _ in range(_SIZE):
            act()
        if number >= _WARM_UP:
            sides = {"client": Counter[CodeType](), "broker": Counter[CodeType]()}
            for ident, counts in [*_counts.items()]:
                sides["broker" if ident in servers else "client"] += Counter(
                    {code: n for code, n in [*counts.items()] if _is_own(code)}
                )
            groups.append((sides, sum(_rounds[each] for each in servers)))
    sys.setprofile(None)
    return min(groups, key=lambda group: group[0]["client"].total() + group[0]["broker"].total())


def _measured(name: str) -> dict[str, int]:
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    with tempfile.TemporaryDirectory() as folder:
        nameserver, broker = asyncio.run_coroutine_threadsafe(_start(folder), loop).result()
        servers = {each.ident or 0 for each in threading.enumerate()} - {threading.get_ident()}
        with Admin(nameserver.address) as admin:
            admin.create_topic("t", queues=1)
        with _OPERATIONS[name](nameserver.address) as act:
            sides, rounds = _counted(act, servers)
        asyncio.run_coroutine_threadsafe(_stop(nameserver, broker), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    if "--json" not in sys.argv:
        print(
            f"{name}: " + ", ".join(f"{side} {counts.total() / _SIZE:.1f} calls" for side, counts in sides.items()),
            end="",
        )
        print(f", {rounds / _SIZE:.1f} iterations of the broker's loop")
    if "--by-name" in sys.argv:
        for side, counts in sides.items():
            for code, n in counts.most_common():
                print(f"{side} {n / _SIZE:7.1f} {code.co_filename.removeprefix(str(_ROOT))} {code.co_qualname}")
    return {f"own calls of {name}: {side}": round(counts.total() / _SIZE) for side, counts in sides.items()}


def main() -> None:
    """Run each operation repeatedly, and print the calls of client and broker per operation."""
    _count_rounds()
    threading.setprofile(_count)
    found: dict[str, int] = {}
    for name in [each for each in _OPERATIONS if each in sys.argv] or _OPERATIONS:
        found |= _measured(name)
    if "--json" in sys.argv:
        print(json.dumps(found))


async def _stop(nameserver: NameServer, broker: Broker) -> None:
    await broker.stop()
    await nameserver.stop()


if __name__ == "__main__":
    main()
