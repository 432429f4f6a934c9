"""Requests and their replies."""

from __future__ import annotations

import pytest

from contract.case import Case
from minimq import Message, Reply
from minimq.errors import Closed

WAIT_S = 60.0


@pytest.mark.kinds("listener")
def test_a_request_has_its_reply(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    pending = case.producer.request_async(Message(topic, b"question"), timeout=WAIT_S)
    case.disturb()
    receiver.end(receiver.take(), Reply(b"answer"))
    assert pending.result(WAIT_S).body == b"answer"


@pytest.mark.kinds("pull", "work_queue")
def test_of_several_replies_by_a_producer_the_first_counts(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    pending = case.producer.request_async(Message(topic, b"question"), timeout=WAIT_S)
    [request] = receiver.take()
    case.disturb()
    replier = case.make("Producer")
    replier.reply(request, Reply(b"one", {"a": "b"}))
    replier.flush(WAIT_S)
    replier.reply(request, Reply(b"two"))
    assert pending.result(WAIT_S) == Reply(b"one", {"a": "b"})


@pytest.mark.kinds("listener")
def test_each_requester_gets_its_own_replies_also_after_another_one_has_gone(case: Case) -> None:
    topic = case.topic()
    receiver = case.receiver(topic)
    requesters = {b"%d" % number: case.make("Producer") for number in range(5)}
    pending = {body: each.request_async(Message(topic, body), timeout=WAIT_S) for body, each in requesters.items()}
    requests = receiver.take(len(requesters))
    requesters[b"0"].close()
    case.disturb()
    for request in requests:
        receiver.end([request], Reply(request.body))
    with pytest.raises(Closed):
        pending.pop(b"0").result(WAIT_S)
    assert {body: each.result(WAIT_S).body for body, each in pending.items()} == {body: body for body in pending}
    case.check_at_end(topic, receiver)
