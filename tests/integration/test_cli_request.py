"""`minimq request`."""

from __future__ import annotations

import json

import pytest

from minimq import LocalCluster, ReceivedMessage, Reply
from support.command import Minimq
from support.replying import service


@pytest.fixture
def minimq(cluster: LocalCluster) -> Minimq:
    return Minimq(cluster.nameserver)


def answer(messages: list[ReceivedMessage]) -> Reply:
    [message] = messages
    if message.body == b"bad":
        return Reply(error="this is bad")
    return Reply(message.body[::-1], {"tag": message.tag or "", "keys": ",".join(message.keys), **message.properties})


def test_the_reply_is_printed_as_it_is_or_as_json(minimq: Minimq, cluster: LocalCluster, topic: str) -> None:
    with service(cluster.nameserver, topic, answer):
        assert minimq("request", topic, "abc", "--timeout", "30") == "cba"
        options = ("--tag", "t", "--key", "k", "--key", "l", "--property", "a=b", "--output", "json")
        shown = json.loads(minimq("request", topic, "abc", "--timeout", "30", *options))
        assert shown["properties"].pop("REPLY_TO").startswith("broker-")
        assert shown == {"body": "cba", "properties": {"tag": "t", "keys": "k,l", "a": "b"}}
        assert json.loads(minimq("request", topic, "-", "--output", "json", stdin=b"\xff\x00"))["body_base64"] == "AP8="
        assert minimq("request", topic, "-", stdin=b"x\ny") == "y\nx"


def test_errors_are_told_in_a_line(minimq: Minimq, cluster: LocalCluster, topic: str) -> None:
    with service(cluster.nameserver, topic, answer):
        assert minimq("request", topic, "bad", "--timeout", "30", status=1) == "error: this is bad\n"
    late = minimq("request", topic, "abc", "--timeout", "3", status=1)
    assert late.startswith("error: no reply to the request came within 3 s: it is stored in queue ")
