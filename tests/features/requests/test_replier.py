"""Where a reply goes, and which messages are requests; without servers."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import NamedTuple

import pytest

from minimq import Message, MessageQueue
from minimq.errors import InvalidArgument, MessageTooLarge, SendFailed
from minimq.features.requests.replier import Replier
from minimq.features.requests.reply import REPLY_TO, Reply, ReplyTo, reply_of, reply_to
from minimq.sending.producer_core import ProducerCore
from minimq.sending.producer_options import ProducerOptions
from minimq_common.names import MAX_BROKER
from support.cases import for_each

TO = ReplyTo(MessageQueue("%REPLY%", "room@broker-a", 7), "0123456789abcdef", "a" * 24, 1_000)


class Received(NamedTuple):
    """A message, as far as a reply needs it."""

    properties: Mapping[str, str]
    born_ms: int = 0


@pytest.fixture
def core() -> Iterator[ProducerCore]:
    made = ProducerCore("127.0.0.1:1", ProducerOptions(max_body_bytes=100))
    yield made
    with suppress(SendFailed):
        made.close(0.0)


@pytest.fixture
def replier(core: ProducerCore) -> Replier:
    return Replier(core)


def request(age_s: float = 0.0) -> Received:
    return Received({REPLY_TO: str(TO)}, round((time.time() - age_s) * 1000))


@for_each("reply", [Reply(), Reply(b"body", {"a": "b"}), Reply(b"why", {"a": "b"}, "no such flight"), Reply(error="")])
def test_a_reply_goes_to_the_queue_of_its_requester_with_its_tag(replier: Replier, reply: Reply) -> None:
    prepared = replier.prepare(request(), reply)
    assert prepared is not None
    message = prepared.item.message
    assert (prepared.item.queue, message.topic, message.tag) == (TO.queue, "%REPLY%", TO.tag)
    assert reply_of(message) == (TO.request_id, reply)


def test_a_message_that_is_not_a_request_gets_no_reply_but_an_invalid_reply_is_rejected(replier: Replier) -> None:
    plain = Received({})
    assert replier.prepare(plain, Reply(b"")) is None
    with pytest.raises(MessageTooLarge):
        replier.prepare(plain, Reply(bytes(101)))
    with pytest.raises(InvalidArgument, match="REPLY_ERROR"):
        replier.prepare(plain, Reply(b"", {"REPLY_ERROR": "x"}))
    with pytest.raises(InvalidArgument, match="it is not a request"):
        replier.answer(plain, Reply(b""))


@pytest.mark.parametrize(("age_s", "is_sent"), [(5.0, 1), (60.0, 0), (-3600.0, 1)])
def test_a_request_is_not_answered_long_after_its_deadline(
    core: ProducerCore, replier: Replier, age_s: float, is_sent: int
) -> None:
    replier.answer(request(age_s), Reply(b""))
    assert core.statistics().buffered_messages == is_sent


@for_each(
    "value",
    [
        "",
        "/////",
        f"{TO}\n",
        f"{TO}/",
        f"{TO}0000000",
        "x" * 1_000_000,
        str(TO).removeprefix("%REPLY%"),
        str(TO).replace("%REPLY%", "orders"),
        str(TO).replace("%REPLY%", "%REPLY%/"),
        str(TO).replace("%REPLY%", "%REPLY%" + "x" * 200),
        str(TO).replace("room@broker-a", ""),
        str(TO).replace("room@broker-a", "b" * (MAX_BROKER + 1)),
        str(TO).replace("/7/", "/70000/"),
        str(TO).replace("def", "DEF"),
        str(TO._replace(request_id="")),
        str(TO._replace(request_id="ü" * 24)),
        str(TO._replace(wait_ms=-1)),
        str(TO).replace("1000", "٣"),
    ],
)
def test_other_values_of_the_property_do_not_make_a_request(value: str) -> None:
    assert reply_to(Received({REPLY_TO: str(TO)})) == TO
    assert reply_to(Received({REPLY_TO: value})) is None


def test_the_message_of_a_request_is_a_message() -> None:
    assert reply_to(Received(Message("t", b"", properties={REPLY_TO: str(TO)}).properties)) == TO
