"""All servers come to the same users and rules, in whatever order and over whichever links they hear of them."""

from __future__ import annotations

import logging
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq_common.errors import InvalidArgument
from minimq_common.security.access_document import AccessDocument, User
from minimq_common.security.shared_access import AccessConversation, AccessRank, SharedAccess
from minimq_proto.v1.nameserver_pb2 import AccessNotice


def document(version: int, *users: str) -> AccessDocument:
    return AccessDocument(version, {user: User() for user in users})


def rank(of: AccessDocument) -> AccessRank:
    return AccessRank(of.version, of.digest)


class Link:
    """A stream between two servers, whose messages arrive one by one, or are lost with it."""

    def __init__(self, one: SharedAccess, other: SharedAccess) -> None:
        self.ends = [AccessConversation(one, "b"), AccessConversation(other, "a")]
        self.on_the_way: list[deque[AccessNotice]] = [deque(), deque()]
        self.documents: list[AccessRank] = []

    def step(self, end: int) -> bool:
        """Let one end take a message in, and say what it has to; return whether anything happened."""
        happened = bool(self.on_the_way[end])
        if happened:
            self.ends[end].hear(self.on_the_way[end].popleft())
        while (said := self.ends[end].due()) is not None:
            self.on_the_way[1 - end].append(said)
            self.documents += [AccessRank(said.version, said.digest)] if said.document else []
            happened = True
        return happened


@given(
    servers=st.integers(2, 5),
    events=st.lists(
        st.tuples(st.sampled_from(["offer", "step", "break"]), st.integers(0, 99), st.integers(0, 99)), max_size=60
    ),
)
def test_the_newest_document_reaches_every_server(servers: int, events: list[tuple[str, int, int]]) -> None:
    own = [SharedAccess() for _ in range(servers)]
    pairs = [(one, one + 1) for one in range(servers - 1)]  # a chain: nobody hears everything at first hand
    links = [Link(own[one], own[other]) for one, other in pairs]
    offered: list[AccessDocument] = []
    for kind, first, second in events:
        if kind == "offer":
            made = document(1 + second // 3, f"u{second}")
            offered.append(made)
            own[first % servers].offer(made, "test")
        elif kind == "step":
            links[first % len(links)].step(second % 2)
        else:
            number = first % len(links)
            links[number] = Link(*(own[end] for end in pairs[number]))
    while any([link.step(end) for link in links for end in (0, 1)]):  # noqa: C419 - each of them
        pass
    newest = max(map(rank, offered), default=AccessRank())
    assert [each.rank for each in own] == [newest] * servers
    assert all(link.ends[end].agreed for link in links for end in (0, 1))


def test_a_document_is_sent_once_to_whom_it_is_new() -> None:
    here, there = SharedAccess(), SharedAccess()
    here.offer(document(3, "alice"), "test")
    link = Link(here, there)
    while link.step(0) | link.step(1):
        pass
    assert link.documents == [here.rank]
    assert there.document == here.document


def test_what_is_not_what_was_announced_is_refused() -> None:
    own = SharedAccess()
    conversation = AccessConversation(own, "b")
    made = document(2, "alice")
    with pytest.raises(InvalidArgument, match="not that which was announced"):
        conversation.hear(AccessNotice(version=3, digest=made.digest, document=made.encoded()))
    with pytest.raises(InvalidArgument, match="cannot be read"):
        conversation.hear(AccessNotice(version=made.version, digest=made.digest, document=b"{"))
    assert own.document is None
    assert not conversation.agreed


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
