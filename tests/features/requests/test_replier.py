"""Replies are prepared for requests alone, and not sent when nobody can wait for them any more."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import NamedTuple

import pytest

from minimq.connection.client import ClusterClient
from minimq.errors import InvalidArgument, MessageTooLarge
from minimq.features.requests.replier import Replier
from minimq.features.requests.reply import Reply
from minimq_common.properties import REPLY_TO, ReplyTo

TO = ReplyTo("broker-a", bytes(16), "id", 1_000)


class Received(NamedTuple):
    """A message, as far as a reply needs it."""

    properties: Mapping[str, str]
    born_ms: int
    topic: str = "t"


@pytest.fixture
def replier() -> Iterator[Replier]:
    with closing(ClusterClient("127.0.0.1:1")) as client:
        made = Replier(client, max_body_bytes=100)
        yield made
        made.close(0.0)


def request(age_s: float = 0.0) -> Received:
    return Received({REPLY_TO: str(TO)}, round((time.time() - age_s) * 1000))


def test_the_reply_to_a_request_has_its_id(replier: Replier) -> None:
    prepared = replier.prepare(request(), Reply(b"body", {"a": "b"}))
    assert prepared is not None
    assert (prepared.to, prepared.topic, prepared.made.correlation_id) == (TO, "t", "id")
    assert (prepared.made.body, dict(prepared.made.properties)) == (b"body", {"a": "b"})
    assert not prepared.made.HasField("error")


def test_a_message_that_is_no_request_has_no_reply_but_a_wrong_one_is_told(replier: Replier) -> None:
    plain = Received({}, 0)
    assert replier.prepare(plain, Reply(b"")) is None
    with pytest.raises(MessageTooLarge):
        replier.prepare(plain, Reply(bytes(101)))
    with pytest.raises(InvalidArgument):
        replier.answer(plain, Reply(b""))


@pytest.mark.parametrize(("age_s", "expired"), [(5.0, 0), (60.0, 1), (-3600.0, 0)])
def test_a_request_is_not_answered_long_after_its_deadline(replier: Replier, age_s: float, expired: int) -> None:
    replier.answer(request(age_s), Reply(b""))
    assert replier.outcomes["expired"] == expired
    assert replier.wait(0.0) == bool(expired)
