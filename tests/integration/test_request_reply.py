"""Requests and replies over real servers: each request has one reply, or an error that says why it has none."""

from __future__ import annotations

import pytest

from minimq import LocalCluster, Message, Producer, Reply
from minimq.receiving.push_consumer import Balance
from support.replying import answer_to, service

PATIENCE_S = 30.0


@pytest.mark.parametrize("balance", ["messages", "queues"])
def test_a_listener_that_returns_a_reply_answers_the_request(
    cluster: LocalCluster, producer: Producer, topic: str, balance: Balance
) -> None:
    with service(cluster.nameserver, topic, balance=balance):
        for number in range(5):
            reply = producer.request(Message(topic, b"%d" % number), timeout=PATIENCE_S)
            assert reply == Reply(answer_to(b"%d" % number))


def test_requests_that_are_sent_at_once_are_answered_each_by_its_own_reply(
    cluster: LocalCluster, producer: Producer, topic: str
) -> None:
    bodies = [b"%d" % number for number in range(1_000)]
    with service(cluster.nameserver, topic, batch_size=32):
        futures = [producer.request_async(Message(topic, body), timeout=PATIENCE_S) for body in bodies]
        assert [future.result().body for future in futures] == [*map(answer_to, bodies)]
