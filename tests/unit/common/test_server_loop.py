"""Wake-ups of gRPC: a busy loop takes all of them at once."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import grpc.aio
import pytest

from minimq_common.serving.daemon import ServerLoop


class Wakeups:
    """A socket to which gRPC writes, and the one from which it reads, one byte when it is called."""

    def __init__(self) -> None:
        self.reader, self.writer = socket.socketpair()
        self.reader.setblocking(False)
        self.writer.setblocking(False)
        self.calls = 0
        self._called = asyncio.Event()

    def write_all(self) -> int:
        """Write until there is no room; return how many there were."""
        for number in range(1_000_000):
            try:
                self.writer.send(b"1")
            except BlockingIOError:
                return number
        raise AssertionError("it is never full")

    async def called(self) -> None:
        """Wait for the next call."""
        await self._called.wait()
        self._called.clear()

    def read(self) -> None:
        assert self.reader.recv(1)
        self.calls += 1
        self._called.set()


@pytest.fixture
def wakeups() -> Iterator[Wakeups]:
    made = Wakeups()
    with closing(made.reader), closing(made.writer):
        yield made


def run(work: Any) -> Any:
    with asyncio.Runner(loop_factory=ServerLoop) as runner:
        return runner.run(work)


def test_a_socket_that_is_full_is_empty_after_one_call(wakeups: Wakeups) -> None:
    full = wakeups.write_all()

    async def call_once() -> int:
        asyncio.get_running_loop().add_reader(wakeups.reader, wakeups.read)
        await wakeups.called()
        return wakeups.write_all()

    assert run(call_once()) == full


def test_a_call_for_each_time_that_something_has_come(wakeups: Wakeups) -> None:
    async def wake_often() -> None:
        asyncio.get_running_loop().add_reader(wakeups.reader, wakeups.read)
        for bytes_ in (1, 2, 100, 1):
            wakeups.writer.send(b"1" * bytes_)
            await wakeups.called()
            for _ in range(3):  # nobody is called for what was left
                await asyncio.sleep(0)

    run(wake_often())
    assert wakeups.calls == 4


def test_grpc_is_woken_by_such_a_socket() -> None:
    """Where another release of it is not, the loop does nothing for it."""
    watched: list[object] = []

    class Loop(ServerLoop):
        def add_reader(self, fd: object, *args: object) -> None:
            watched.append(fd)
            super().add_reader(fd, *args)  # type: ignore[arg-type]

    async def begin() -> None:
        server = grpc.aio.server()
        await server.start()
        await server.stop(0)

    with asyncio.Runner(loop_factory=Loop) as runner:
        runner.run(begin())
    assert [fd.family for fd in watched if isinstance(fd, socket.socket)] == [socket.AF_UNIX]
