"""Attacks of a hostile or faulty client on a name server; each attack runs in its own process."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

import grpc
import grpc.aio

from minimq_proto.v1 import controller_pb2, controller_pb2_grpc, nameserver_pb2, nameserver_pb2_grpc

if TYPE_CHECKING:
    from minimq_proto.v1.controller_pb2_grpc import ControllerAsyncStub
    from minimq_proto.v1.nameserver_pb2_grpc import NameServerAsyncStub

#: Niceness of attackers with a fixed pace, so that the measurement shows the name server and not the contention for
#: processors.
_NICE = 5
#: The largest request that name servers accepted before they had a tighter limit.
_FRAME_BYTES = 64 << 20
_OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.use_local_subchannel_pool", 1),
)

#: Attacks the name server at an address until cancelled.
Attack = Callable[[str], Coroutine[Any, Any, None]]


def _channel(address: str) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address, options=_OPTIONS)


def _names(address: str) -> NameServerAsyncStub:
    return cast("NameServerAsyncStub", nameserver_pb2_grpc.NameServerStub(_channel(address)))


def _controller(address: str) -> ControllerAsyncStub:
    return cast("ControllerAsyncStub", controller_pb2_grpc.ControllerStub(_channel(address)))


#: Counts calls.
_done = itertools.count()


async def _forever(act: Callable[..., Awaitable[object]], *arguments: Any) -> None:
    """Repeat an action, ignoring errors of the server."""
    while True:
        next(_done)
        try:
            await act(*arguments)
        except (grpc.RpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
            await asyncio.sleep(0.01)


async def _all(acts: Iterable[Awaitable[object]]) -> None:
    await asyncio.gather(*acts)


def _topics(count: int, prefix: str = "flood") -> list[str]:
    return [f"{prefix}-{number:07d}-of-a-topic-with-a-name" for number in range(count)]


def _table(
    name: str, topics: Sequence[str], version: int = 1, queues: int = 4, address: str = ""
) -> nameserver_pb2.RegisterRequest:
    return nameserver_pb2.RegisterRequest(
        cluster="default",
        broker_name=name,
        address=address or f"{name}:1",
        data_version=version,
        permission=6,
        groups=[nameserver_pb2.TopicGroup(topics=topics, read_queues=queues, write_queues=queues, permission=6)],
    )


class _Broker:
    """The registration stream of one broker."""

    def __init__(self, stub: NameServerAsyncStub) -> None:
        self._stream = stub.Register()

    async def tell(self, request: nameserver_pb2.RegisterRequest) -> None:
        await self._stream.write(request)
        if await self._stream.read() is grpc.aio.EOF:
            await self._stream.code()
            raise asyncio.InvalidStateError

    async def leave(self) -> None:
        await self._stream.done_writing()


# ---- Tables ------------------------------------------------------------------------------------


async def _fill(address: str, brokers: int, topics_of_each: int) -> list[tuple[_Broker, str, list[str]]]:
    """Register brokers, each with its own topics, as far as the name server accepts them."""
    filled = []
    for number in range(brokers):
        broker, name = _Broker(_names(address)), f"filler-{number}"
        topics = _topics(topics_of_each, f"of-{number}")
        next(_done)
        with contextlib.suppress(grpc.RpcError, asyncio.InvalidStateError):
            await broker.tell(_table(name, topics))
            filled.append((broker, name, topics))
    return filled


async def _watched(address: str, brokers: int, topics_of_each: int, watches: Iterable[slice]) -> None:
    """Each client watches some of the topics, while brokers keep changing all of them."""
    filled = await _fill(address, brokers, topics_of_each)
    topics = [topic for _, _, of_one in filled for topic in of_one]

    async def watch(some: slice) -> None:
        stream = _names(address).WatchRoutes()
        await stream.write(nameserver_pb2.WatchRoutesRequest(topics=topics[some]))
        async for _ in stream:
            pass

    async def change() -> None:
        for version in itertools.count(2):
            for broker, name, of_one in filled:
                await broker.tell(_table(name, of_one, version, queues=4 + version % 4))

    await _all([*(_forever(watch, some) for some in watches), _forever(change)])


async def many_watchers(address: str) -> None:
    """60 clients each watch 200,000 topics, while brokers keep changing all of them."""
    await _watched(address, 10, 20_000, [slice(None)] * 60)


async def modest_watchers(address: str) -> None:
    """200 clients each watch 1,000 topics, while brokers keep changing all of them."""
    await _watched(address, 10, 10_000, [slice(at * 300, at * 300 + 1000) for at in range(200)])


async def unread_watches(address: str) -> None:
    """2,000 watches, whose answers are not read, of topics on many brokers that keep changing."""
    topics = _topics(200)
    brokers = [_Broker(_names(address)) for _ in range(100)]
    tables = [_table(f"wide-{number:03d}" + "-of-a-long-name" * 6, topics) for number in range(len(brokers))]

    async def change(number: int) -> None:
        table = tables[number]
        table.data_version += 1
        for group in table.groups:
            group.read_queues = 4 + table.data_version % 4
        try:
            await brokers[number].tell(table)
        except (grpc.RpcError, asyncio.InvalidStateError):
            brokers[number] = _Broker(_names(address))
            raise

    stubs = [_names(address) for _ in range(40)]

    async def watch(number: int) -> None:
        stream = stubs[number % len(stubs)].WatchRoutes()
        await stream.write(nameserver_pb2.WatchRoutesRequest(topics=topics))
        over = asyncio.Event()
        stream.add_done_callback(lambda _: over.set())
        await over.wait()
        await asyncio.sleep(0.5)

    await _all(
        [
            *(_forever(change, number) for number in range(len(brokers))),
            *(_forever(watch, number) for number in range(2_000)),
        ]
    )


async def unknown_topics(address: str) -> None:
    """Watches of millions of topics that do not exist."""

    async def watch(number: int) -> None:
        stream = _names(address).WatchRoutes()
        for part in itertools.count():
            topics = _topics(20_000, f"nobody-{number}-{part}")
            await stream.write(nameserver_pb2.WatchRoutesRequest(topics=topics))
            await asyncio.sleep(0.2)
            if stream.done():
                return

    await _all(_forever(watch, number) for number in range(60))


async def huge_tables(address: str) -> None:
    """Brokers with a million topics each."""
    table = _table("huge", _topics(1_000_000))

    async def register() -> None:
        await _Broker(_names(address)).tell(table)

    await _all(_forever(register) for _ in range(4))


async def full_tables(address: str) -> None:
    """16 brokers with 45,000 topics each keep changing all of them."""

    async def register(number: int) -> None:
        topics = _topics(45_000, f"full-{number}")
        broker = _Broker(_names(address))
        for version in itertools.count(1):
            await broker.tell(_table(f"full-{number}", topics, version, queues=4 + version % 4))

    await _all(_forever(register, number) for number in range(16))


async def many_brokers(address: str) -> None:
    """One client registers 10,000 brokers, which all carry the canary's topic."""
    stubs = [_names(address) for _ in range(100)]

    async def register(number: int) -> None:
        broker = _Broker(stubs[number % len(stubs)])
        for _ in itertools.count():
            await broker.tell(_table(f"many-{number}", ["canary", *_topics(20, f"many-{number}")]))
            await asyncio.sleep(1)

    await _all(_forever(register, number) for number in range(10_000))


async def departures(address: str) -> None:
    """Brokers with 20,000 topics each register and leave; the name server remembers their names."""
    numbers = itertools.count()

    async def come_and_go() -> None:
        number = next(numbers)
        broker = _Broker(_names(address))
        await broker.tell(_table(f"gone-{number}", _topics(20_000, f"gone-{number}")))
        await broker.leave()

    await _all(_forever(come_and_go) for _ in range(8))


async def conflicts(address: str) -> None:
    """Hundreds of brokers that keep claiming the canary's name."""
    stubs = [_names(address) for _ in range(20)]
    numbers = itertools.count()

    async def register() -> None:
        number = next(numbers)
        broker = _Broker(stubs[number % len(stubs)])
        await broker.tell(_table("canary", ["canary"], version=0, address=f"rival-{number}:1"))

    await _all(_forever(register) for _ in range(400))


# ---- Calls -------------------------------------------------------------------------------------

_CALLS = [
    "/minimq.v1.NameServer/GetRoutes",
    "/minimq.v1.NameServer/GetCluster",
    "/minimq.v1.NameServer/ForgetBroker",
    "/minimq.v1.Controller/Report",
    "/minimq.v1.Controller/ChangeInSync",
    "/minimq.v1.Controller/Promote",
    "/grpc.health.v1.Health/Check",
]


async def _call_with(address: str, body: bytes, at_once: int) -> None:
    channels = [_channel(address) for _ in range(10)]

    async def call(number: int) -> None:
        multicallable: Any = channels[number % len(channels)].unary_unary(_CALLS[number % len(_CALLS)])
        await multicallable(body)

    await _all(_forever(call, number) for number in range(at_once))


async def huge_calls(address: str) -> None:
    """Every unary call with 64 MiB."""
    await _call_with(address, b"\x0a" + b"\xf6\xff\xff\x1f" + b"x" * (_FRAME_BYTES - 10), 20)


async def large_calls(address: str) -> None:
    """Every unary call with nearly 4 MiB, 200 at once."""
    size = (4 << 20) - 100
    await _call_with(
        address,
        b"\x0a"
        + bytes([size & 0x7F | 0x80, size >> 7 & 0x7F | 0x80, size >> 14 & 0x7F | 0x80, size >> 21])
        + b"x" * size,
        200,
    )


async def listings(address: str) -> None:
    """Listings of everything, by 100 concurrent clients."""
    await _fill(address, 10, 20_000)
    stubs = [_names(address) for _ in range(20)]

    async def ask(number: int) -> None:
        stub = stubs[number % len(stubs)]
        match number % 3:
            case 0:
                await stub.GetRoutes(nameserver_pb2.GetRoutesRequest())
            case 1:
                await stub.GetRoutes(nameserver_pb2.GetRoutesRequest(names_only=True))
            case _:
                await stub.GetCluster(nameserver_pb2.GetClusterRequest())

    await _all(_forever(ask, number) for number in range(100))


# ---- The controller ----------------------------------------------------------------------------


def _report(name: str, replica_id: int = 1, run: int = 1, **fields: Any) -> controller_pb2.ReportRequest:
    return controller_pb2.ReportRequest(
        cluster="default",
        broker_name=name,
        replica_id=replica_id,
        run=run,
        address=f"{name}-{replica_id}:1",
        min_in_sync=1,
        **fields,
    )


async def _report_all(address: str, at_once: int, make: Callable[[int], controller_pb2.ReportRequest]) -> None:
    stubs = [_controller(address) for _ in range(20)]
    numbers = itertools.count()

    async def report() -> None:
        number = next(numbers)
        await stubs[number % len(stubs)].Report(make(number))

    await _all(_forever(report) for _ in range(at_once))


async def reports(address: str) -> None:
    """Reports of ever new brokers, which each found a replica set."""
    await _report_all(address, 100, lambda number: _report(f"founder-{number}", founds=True))


async def held_reports(address: str) -> None:
    """Reports of ever new brokers that found nothing and wait for an hour."""
    await _report_all(address, 5_000, lambda number: _report(f"waits-{number}", wait_ms=3_600_000))


async def false_replicas(address: str) -> None:
    """Reports of ever new replicas of the canary's broker."""
    await _report_all(address, 100, lambda number: _report("canary", replica_id=2 + number))


async def plain_reports(address: str) -> None:
    """Valid reports of a replica, 200 at once."""
    await _report_all(address, 200, lambda number: _report("reports", replica_id=1, founds=True))


async def look_ups(address: str) -> None:
    """Look-ups, 200 at once."""
    stubs = [_names(address) for _ in range(10)]

    async def ask(number: int) -> None:
        await stubs[number % len(stubs)].GetRoutes(nameserver_pb2.GetRoutesRequest(topic="canary"))

    await _all(_forever(ask, number) for number in range(200))


ATTACKS: dict[str, Attack] = {
    attack.__name__.replace("_", "-"): attack
    for attack in (
        many_watchers,
        modest_watchers,
        unread_watches,
        unknown_topics,
        huge_tables,
        full_tables,
        many_brokers,
        departures,
        conflicts,
        huge_calls,
        large_calls,
        listings,
        reports,
        held_reports,
        false_replicas,
        plain_reports,
        look_ups,
    )
}


_PACED = (many_brokers, held_reports)


async def _attack(name: str, address: str, seconds: float) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await ATTACKS[name](address)


def main() -> None:
    """Run an attack: NAME ADDRESS SECONDS SCALE; SCALE is not used. Prints the number of calls."""
    name, address, seconds, _ = sys.argv[1:]
    if ATTACKS[name] in _PACED:
        os.nice(_NICE)
    asyncio.run(_attack(name, address, float(seconds)))
    print(next(_done))


if __name__ == "__main__":
    main()
