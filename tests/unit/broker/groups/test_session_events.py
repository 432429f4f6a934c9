"""Events that wait for a client that reads slowly, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from unittest.mock import Mock

from minimq_broker.groups.sessions import MAX_WAITING_BYTES, Session
from minimq_common.wire.unsent import UnsentBudget
from minimq_proto.v1 import broker_pb2


def with_session(test: Callable[[Session], Awaitable[None]]) -> None:
    """Run a test with a session that writes nothing by itself."""

    async def run() -> None:
        await test(Session(Mock(), lambda call: None, UnsentBudget(1 << 20), "user", "client"))

    asyncio.run(asyncio.wait_for(run(), 20))


def event(size: int) -> broker_pb2.SessionEvent:
    return broker_pb2.SessionEvent(conflict_over=broker_pb2.ConflictOver(group="g" * size))


def test_a_member_list_takes_the_place_of_one_that_waits() -> None:
    async def test(session: Session) -> None:
        first, second = (event(size).SerializeToString() for size in (1, 2))
        session.tell(event(1))
        session.add_list("g", 1, b"old list")
        session.tell(event(2))
        session.add_list("other", 2, b"another")
        session.add_list("g", 3, b"list")
        assert session.waiting_bytes == len(first + second)
        assert session.next_size() == len(first)
        assert [session.take() for _ in range(4)] == [first, b"list", second, b"another"]
        assert session.waiting_bytes == 0
        session.add_list("g", 4, b"new list")
        assert session.next_size() == len(b"new list")
        session.joined("g", 5)
        session.add_list("g", 4, b"old list")
        assert (session.next_size(), session.take()) == (0, None)

    with_session(test)


def test_a_client_with_many_waiting_bytes_is_not_served_until_it_reads() -> None:
    async def test(session: Session) -> None:
        for _ in range(3):
            session.tell(event(40_000))
        served = asyncio.create_task(session.few())
        for _ in range(2):
            await asyncio.sleep(0)
            assert not served.done()
            session.take()
            session._wake()
        await served
        session.tell(event(MAX_WAITING_BYTES))
        assert session.is_closed
        waiting = session.waiting_bytes
        session.tell(event(1))
        session.add_list("g", 1, b"list")
        assert session.waiting_bytes == waiting
        await session.few()

    with_session(test)
