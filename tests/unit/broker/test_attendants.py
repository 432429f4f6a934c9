"""Clients that attend: found by inbox and producer group, and counted by what they have not read."""

from __future__ import annotations

import asyncio

import pytest

from minimq_broker.services.held.attending import Attendant, Attendants
from minimq_common.properties import inbox_of
from minimq_proto.v1 import attend_pb2

KEY = bytes(range(16))


def client(table: Attendants, name: str = "a", key: bytes = KEY, groups: tuple[str, ...] = ()) -> Attendant:
    hello = attend_pb2.AttendRequest(client_id=name, inbox_key=key, producer_groups=groups)
    return table.new(hello, "user")


def event(size: int) -> attend_pb2.AttendEvent:
    return attend_pb2.AttendEvent(replies=bytes(size))


def test_a_client_is_found_by_the_digest_of_its_key_and_not_by_the_key() -> None:
    table = Attendants()
    entered = client(table)
    table.enter(entered)

    assert table.with_inbox(inbox_of(KEY)) is entered
    assert table.with_inbox(KEY) is None
    table.leave(entered)
    assert table.with_inbox(inbox_of(KEY)) is None
    assert len(table) == 0


def test_a_client_without_a_key_has_no_inbox() -> None:
    table = Attendants()
    table.enter(client(table, key=b""))

    assert table.with_inbox(inbox_of(b"")) is None
    assert len(table) == 1


async def _forever() -> None:
    await asyncio.Event().wait()


def test_a_client_that_is_back_takes_its_inbox_over_and_ends_its_former_stream() -> None:
    async def run() -> None:
        table = Attendants()
        former, later = client(table), client(table)
        former.receiver = asyncio.create_task(_forever())
        table.enter(former)
        table.enter(later)

        with pytest.raises(asyncio.CancelledError):
            await former.receiver
        table.leave(former)
        assert table.with_inbox(inbox_of(KEY)) is later

    asyncio.run(run())


def test_members_of_a_producer_group_are_found_in_the_order_in_which_they_came() -> None:
    table = Attendants()
    first, second = client(table, "a", b"", ("g", "h", "g")), client(table, "b", b"", ("g",))
    table.enter(first)
    table.enter(second)

    assert table.of_producer_group("g") == [first, second]
    assert table.of_producer_group("h") == [first]
    table.leave(first)
    assert table.of_producer_group("g") == [second]
    assert table.of_producer_group("h") == table.of_producer_group("none") == []


def test_an_event_counts_as_unread_until_it_is_written() -> None:
    async def run() -> None:
        table = Attendants()
        entered = client(table)
        table.enter(entered)
        entered.tell(event(100))
        entered.tell(event(200))
        sizes = [event(100).ByteSize(), event(200).ByteSize()]
        assert entered.unread_bytes == table.unread_bytes == sum(sizes)

        assert await entered.some()
        assert entered.next_size == sizes[0]
        assert entered.take() == event(100)
        assert entered.unread_bytes == sum(sizes)
        assert await entered.some()
        assert entered.unread_bytes == sizes[1]
        entered.end()
        assert entered.take() == event(200)
        assert not await entered.some()
        assert table.unread_bytes == 0

    asyncio.run(run())


def test_what_a_client_has_not_read_is_forgotten_with_it() -> None:
    table = Attendants()
    entered = client(table)
    table.enter(entered)
    entered.tell(event(100))
    table.leave(entered)

    assert table.unread_bytes == 0
