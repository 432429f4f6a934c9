"""Requests that have come in part: how much there may be, and whose connections are ended."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import ExitStack, closing

import pytest

from minimq_common import connections, intake
from minimq_common.connections import Traffic
from minimq_common.intake import Intake
from support.waiting import wait_until

MIB = 1 << 20


class World:
    """Connections as a test says they are. The counts of an intake are by address, traffic is in MiB."""

    def __init__(self, limit: int) -> None:
        self.received: dict[str, int] = {}
        self.looks = 0
        self.ended: list[str] = []
        #: Raised by the next look.
        self.failure: Exception | None = None
        #: Connections that the next look does not find.
        self.missed: set[str] = set()
        self._lock = threading.Lock()  # a look sees all of what comes, or nothing
        self.intake = Intake(limit * MIB, self._traffic, self._cut)

    def come(self, address: str, received: int, taken: int) -> None:
        with self._lock:
            self.intake.of(f"ipv4:{address}").bytes = taken * MIB
            self.received[address] = received

    def look(self) -> None:
        """Wait for two whole looks."""
        until = self.looks + 3
        wait_until(lambda: self.looks >= until)

    def _traffic(self, port: int) -> Iterable[Traffic]:
        assert port == 1
        self.looks += 1
        failure, self.failure = self.failure, None
        if failure is not None:
            raise failure
        missed, self.missed = self.missed, set()
        with self._lock:
            found = self.received.copy()
        return [Traffic(address, received * MIB, 0) for address, received in found.items() if address not in missed]

    def _cut(self, addresses: Collection[str]) -> None:
        self.ended += addresses
        for address in addresses:
            del self.received[address]


@pytest.fixture
def worlds(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], World]]:
    monkeypatch.setattr(intake, "_LOOK_S", 0.01)
    monkeypatch.setattr(intake, "_LOOK_GROWN_S", 0.01)
    monkeypatch.setattr(intake, "_LOOK_AT_ALL_S", 0.01)
    with ExitStack() as stack:

        def start(limit: int) -> World:
            world = World(limit)
            world.intake.start(1)
            stack.callback(world.intake.stop)
            return world

        yield start


pytestmark = pytest.mark.skipif(not connections.TELLS_TRAFFIC, reason="the kernel does not tell it")


def test_who_holds_most_is_ended_first(worlds: Callable[[int], World], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intake, "_STUCK_S", 1e9)
    world = worlds(100)
    world.come("a:1", 1000, 950)  # 1 % of what was taken in counts as frames around it
    world.come("b:1", 45, 0)
    world.look()
    assert world.ended == []
    assert 75 * MIB < world.intake.bytes < 90 * MIB
    later = {"c:1": 61, **{f"small:{number}": 8 for number in range(10)}}
    for address in later:
        world.come(address, 1, 0)
    world.look()
    assert world.ended == []
    world.received |= later
    world.look()
    assert world.ended == ["c:1", "b:1", "a:1"]  # and none that holds no more than it may
    assert world.intake.ended == 3


def test_a_connection_that_takes_no_part_may_hold_nothing(
    worlds: Callable[[int], World], caplog: pytest.LogCaptureFixture
) -> None:
    world = worlds(20)
    moved = 0

    def is_ended() -> bool:
        nonlocal moved
        moved += 1
        world.come("moves:1", moved + 7, moved)
        return "stuck:1" in world.ended

    for address in ("stuck:1", "other:1", "another:1"):
        world.come(address, 7, 0)
    wait_until(is_ended)
    assert "moves:1" not in world.ended
    assert "peer=stuck:1 held_bytes=6291456 limit_bytes=20971520" in caplog.text


def test_a_connection_of_which_no_call_is_known_counts(worlds: Callable[[int], World]) -> None:
    world = worlds(20)
    world.received = {"stranger:1": 30}
    world.look()
    assert world.ended == ["stranger:1"]


def test_the_counts_of_connections_that_have_gone_go_as_well(worlds: Callable[[int], World]) -> None:
    world = worlds(100)
    world.come("a:1", 5, 2)
    del world.received["a:1"]
    world.look()
    assert world.intake.of("ipv4:a:1").bytes == 0


def test_a_connection_that_one_look_misses_keeps_its_count(worlds: Callable[[int], World]) -> None:
    world = worlds(100)
    world.come("a:1", 500, 499)
    taken = world.intake.of("ipv4:a:1")
    for _ in range(3):
        world.missed = {"a:1"}
        world.look()
        assert not world.missed
    assert world.intake.of("ipv4:a:1") is taken
    assert world.ended == []


def test_a_look_that_fails_is_not_the_last(worlds: Callable[[int], World], caplog: pytest.LogCaptureFixture) -> None:
    world = worlds(100)
    world.failure = OSError(errno.EMFILE, "too many open files")
    world.look()
    world.come("a:1", 200, 0)
    world.look()
    assert world.ended == ["a:1"]
    assert "requests on their way: not looked at, will try again" in caplog.text
    assert "requests on their way: looked at again failures=1" in caplog.text


def test_nothing_is_taken_for_closed_when_no_more_may_be_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int) -> int:
        raise OSError(errno.EMFILE, "too many open files")

    with closing(socket.create_server(("127.0.0.1", 0))) as listener, closing(socket.socket()) as client:
        client.connect(listener.getsockname())
        monkeypatch.setattr(os, "dup", refuse)
        with pytest.raises(OSError, match="too many open files"):
            connections.cut({f"127.0.0.1:{listener.getsockname()[1]}"})


def test_the_kernel_tells_the_traffic_of_a_connection() -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        client = socket.create_connection(listener.getsockname())
        server, _ = listener.accept()
        client.sendall(bytes(1000))
        server.sendall(bytes(300))
        address, port = f"127.0.0.1:{client.getsockname()[1]}", listener.getsockname()[1]

        def seen() -> list[Traffic]:
            return [each for each in connections.traffic(port) if each.address == address]

        wait_until(lambda: seen() == [Traffic(address, 1000, 300)])
        client.close()
        server.close()
