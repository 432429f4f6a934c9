"""Events that wait for a client that reads slowly, or not at all."""

from __future__ import annotations

import asyncio

from minimq_broker.groups.sessions import SessionEvents


def test_a_member_list_takes_the_place_of_one_that_waits() -> None:
    events = SessionEvents()
    events.add(b"first")
    events.add_list("g", 1, b"old list")
    events.add(b"second")
    events.add_list("other", 2, b"another")
    events.add_list("g", 3, b"list")
    assert events.waiting_bytes == len(b"firstsecond")
    assert events.next_size == len(b"first")
    assert [events.take() for _ in range(4)] == [b"first", b"list", b"second", b"another"]
    assert events.waiting_bytes == 0
    events.add_list("g", 4, b"new list")
    assert events.next_size == len(b"new list")
    assert events.take() == b"new list"


def test_who_has_much_waiting_is_not_heard_until_it_reads() -> None:
    async def test() -> None:
        events = SessionEvents()
        for _ in range(3):
            events.add(bytes(40_000))
        heard = asyncio.create_task(events.few())
        events.take()
        await asyncio.sleep(0.01)
        assert not heard.done()
        events.take()
        await heard
        await events.some()
        events.take()
        waiting = asyncio.create_task(events.some())
        await asyncio.sleep(0.01)
        assert not waiting.done()
        events.add(b"x")
        await waiting

    asyncio.run(asyncio.wait_for(test(), 20))
