"""All servers come to the same users and rules, in whatever order and over whichever links they hear of them."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncIterator
from functools import partial

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, User
from minimq_common.security.shared_access import AccessRank, SharedAccess, exchange
from minimq_proto.v1.nameserver_pb2 import AccessNotice


def document(version: int, *users: str) -> AccessDocument:
    return AccessDocument(version, {user: User() for user in users})


def rank(of: AccessDocument) -> AccessRank:
    return AccessRank(of.version, of.digest)


class Link:
    """A stream between two servers; what is on the way is lost with it."""

    def __init__(self, one: SharedAccess, other: SharedAccess) -> None:
        self.said: list[AccessNotice] = []
        ways: list[asyncio.Queue[AccessNotice]] = [asyncio.Queue(), asyncio.Queue()]

        async def heard(way: asyncio.Queue[AccessNotice]) -> AsyncIterator[AccessNotice]:
            while True:
                yield await way.get()

        async def write(way: asyncio.Queue[AccessNotice], notice: AccessNotice) -> None:
            self.said.append(notice)
            way.put_nowait(notice)

        self.ends = [
            asyncio.create_task(exchange(own, "other", heard(ways[end]), partial(write, ways[1 - end])))
            for end, own in enumerate((one, other))
        ]

    async def end(self) -> None:
        for task in self.ends:
            task.cancel()
        await asyncio.gather(*self.ends, return_exceptions=True)


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


@given(
    servers=st.integers(2, 5),
    events=st.lists(
        st.tuples(st.sampled_from(["offer", "turns", "break"]), st.integers(0, 99), st.integers(0, 99)), max_size=60
    ),
)
def test_the_newest_document_reaches_every_server(servers: int, events: list[tuple[str, int, int]]) -> None:
    async def test() -> None:
        own = [SharedAccess() for _ in range(servers)]
        pairs = [(one, one + 1) for one in range(servers - 1)]  # a chain: nobody hears everything at first hand
        links = [Link(own[one], own[other]) for one, other in pairs]
        offered: list[AccessDocument] = []
        for kind, first, second in events:
            if kind == "offer":
                offered.append(document(1 + second // 3, f"u{second}"))
                own[first % servers].offer(offered[-1], "test")
            elif kind == "turns":
                await turns(second % 10)
            else:
                number = first % len(links)
                await links[number].end()
                links[number] = Link(*(own[end] for end in pairs[number]))
        await turns(100 * servers)
        assert [each.rank for each in own] == [max(map(rank, offered), default=AccessRank())] * servers
        assert [each.age.seconds for each in own] == [0] * servers
        for link in links:
            await link.end()
        assert all(each.age.seconds > 0 for each in own)

    asyncio.run(test())


def test_what_is_no_document_ends_the_talk() -> None:
    async def heard() -> AsyncIterator[AccessNotice]:
        yield AccessNotice(document=b"{")

    async def write(_: AccessNotice) -> None:
        pass

    own = SharedAccess()
    with pytest.raises(InvalidArgument, match="cannot be read"):
        asyncio.run(exchange(own, "b", heard(), write))
    assert own.document is None
    assert math.isinf(own.age.seconds)


def test_two_documents_of_one_version_are_an_error_once(caplog: pytest.LogCaptureFixture) -> None:
    own = SharedAccess()
    one, other = sorted((document(5, "alice"), document(5, "bob")), key=rank)
    with caplog.at_level(logging.INFO):
        assert own.offer(one, "here")
        assert own.offer(other, "there")
        assert not own.offer(one, "here")
    assert own.document == other
    assert [record.levelname for record in caplog.records].count("ERROR") == own.conflicts == 1
    assert any(
        "user alice removed" in record.getMessage() for record in caplog.records if record.name == "minimq.audit"
    )
