"""Counts the calls of minimq's Python functions, and the iterations of the broker's loop, per single `send` or `ack`.

Usage: python bench/send_calls.py [--acks] [--by-name]; `--by-name` lists the functions that each side calls.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from minimq import Admin, Message, PoppedMessage, Producer, SimpleConsumer
from minimq_broker.options import BrokerOptions
from minimq_broker.server import Broker
from minimq_nameserver.options import NameServerOptions
from minimq_nameserver.server import NameServer

_ROOT = str(Path(__file__).parents[1])
_TIMES = 300
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
    return code.co_filename.startswith(_ROOT) and "/.venv/" not in code.co_filename and code.co_filename != __file__


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
    with Producer(nameserver) as producer:
        producer.send_many(Message("t", b"x" * 100) for _ in range(2 * _TIMES))
    with SimpleConsumer(nameserver, group="g") as consumer:
        consumer.subscribe("t")
        received: list[PoppedMessage] = []
        while len(received) < 2 * _TIMES:
            received += consumer.receive(2 * _TIMES)
        each = iter(received)
        yield lambda: consumer.ack(next(each))


def main() -> None:
    """Run the operation repeatedly, and print the calls of client and broker per operation."""
    _count_rounds()
    threading.setprofile(_count)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    with tempfile.TemporaryDirectory() as folder:
        nameserver, broker = asyncio.run_coroutine_threadsafe(_start(folder), loop).result()
        servers = {each.ident for each in threading.enumerate()} - {threading.get_ident()}
        with Admin(nameserver.address) as admin:
            admin.create_topic("t", queues=8)
        with (_acks if "--acks" in sys.argv else _sends)(nameserver.address) as act:
            sys.setprofile(_count)
            for each in range(2 * _TIMES):
                if each == _TIMES:  # warmed up
                    _counts.clear()
                    _rounds.clear()
                act()
            sys.setprofile(None)
            calls = {side: Counter[CodeType]() for side in ("client", "broker")}
            for ident, counts in [*_counts.items()]:
                calls["broker" if ident in servers else "client"] += counts
            rounds = _rounds[thread.ident or 0]
        asyncio.run_coroutine_threadsafe(_stop(nameserver, broker), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
    for side, counts in calls.items():
        print(f"{side}: {sum(n for code, n in counts.items() if _is_own(code)) / _TIMES:.1f} calls of own code")
    print(f"broker: {rounds / _TIMES:.1f} iterations of its loop")
    if "--by-name" in sys.argv:
        for side, counts in calls.items():
            for code, n in counts.most_common():
                if _is_own(code) and n > _TIMES // 10:
                    print(f"{side} {n / _TIMES:7.1f} {code.co_filename.removeprefix(_ROOT)} {code.co_qualname}")


async def _stop(nameserver: NameServer, broker: Broker) -> None:
    await broker.stop()
    await nameserver.stop()


if __name__ == "__main__":
    main()
