"""The streams of clients that attend, as strangers see them: nobody opens or floods the inbox of another."""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from typing import Any

import grpc
import pytest

from minimq import LocalCluster
from minimq_broker.features.requests.event_service import MAX_UNREAD_BYTES
from minimq_common.errors import InvalidArgument
from minimq_common.properties import inbox_of
from minimq_common.wire.rpc import from_rpc_error, open_channel
from minimq_proto.v1 import broker_pb2_grpc, events_pb2
from support.waiting import wait_until

TIMEOUT_S = 30.0
FORWARDED, NOT_OPEN, UNREAD, TOO_LARGE = range(4)


@pytest.fixture
def stub(cluster: LocalCluster) -> Iterator[broker_pb2_grpc.BrokerStub]:
    with closing(open_channel(cluster.brokers[0].address)) as channel:
        yield broker_pb2_grpc.BrokerStub(channel)


@contextmanager
def attending(stub: Any, key: bytes, client_id: str = "c") -> Iterator[Any]:
    """Attend; the stream is open, and its further events are not read."""
    requests: queue.SimpleQueue[events_pb2.EventsRequest | None] = queue.SimpleQueue()
    requests.put(events_pb2.EventsRequest(client_id=client_id, inbox_key=key))
    events = stub.Events(iter(requests.get, None), timeout=TIMEOUT_S)
    try:
        assert next(events).HasField("opened")
        yield events
    finally:
        requests.put(None)
        events.cancel()


def reply(stub: Any, inbox: bytes, *bodies: bytes) -> list[int]:
    """Send replies, a batch of each; return the outcomes."""
    batches = [events_pb2.ReplyBatch(replies=[events_pb2.RequestReply(body=body)]) for body in bodies]
    parts = (events_pb2.InboxReplies(inbox=inbox, replies=each.SerializeToString(), count=1) for each in batches)
    requests = [events_pb2.ReplyRequest(request_id=number, inboxes=[part]) for number, part in enumerate(parts)]
    answers = list(stub.Reply(iter(requests), timeout=TIMEOUT_S))
    assert [answer.request_id for answer in answers] == list(range(len(bodies)))
    return [outcome for answer in answers for outcome in answer.outcomes]


def bodies_of(event: events_pb2.ClientEvent) -> list[bytes]:
    return [each.body for each in events_pb2.ReplyBatch.FromString(event.replies).replies]


def test_replies_reach_the_inbox_whose_address_they_have_and_no_other(stub: Any) -> None:
    key, other = os.urandom(32), os.urandom(32)
    with attending(stub, key) as events, attending(stub, other) as others:
        assert reply(stub, inbox_of(key), b"one", b"two") == [FORWARDED, FORWARDED]
        assert reply(stub, inbox_of(other), b"three") == [FORWARDED]
        assert [bodies_of(next(events)), bodies_of(next(events))] == [[b"one"], [b"two"]]
        assert bodies_of(next(others)) == [b"three"]
        assert reply(stub, os.urandom(16), b"x") == reply(stub, b"", b"x") == [NOT_OPEN]
    wait_until(lambda: reply(stub, inbox_of(key), b"x") == [NOT_OPEN], what="the inbox is closed with its stream")


def test_who_knows_the_address_of_an_inbox_cannot_open_it(stub: Any) -> None:
    key = os.urandom(32)
    address = inbox_of(key)
    with attending(stub, key) as events, attending(stub, address):
        assert reply(stub, address, b"x") == [FORWARDED]
        assert bodies_of(next(events)) == [b"x"]


def test_a_client_that_is_back_ends_its_former_stream(stub: Any) -> None:
    key = os.urandom(32)
    with attending(stub, key) as former, attending(stub, key) as later:
        assert list(former) == []
        assert reply(stub, inbox_of(key), b"x") == [FORWARDED]
        assert bodies_of(next(later)) == [b"x"]


def test_replies_that_wait_for_a_client_come_to_its_later_stream(stub: Any, cluster: LocalCluster) -> None:
    key = os.urandom(32)
    large = [bytes([number]) * (MAX_UNREAD_BYTES // 8) for number in range(64)]
    with ExitStack() as stack:
        channel = stack.enter_context(closing(open_channel(cluster.brokers[0].address)))
        former = stack.enter_context(attending(broker_pb2_grpc.BrokerStub(channel), key))
        outcomes = reply(stub, inbox_of(key), *large)
        forwarded = [body for body, outcome in zip(large, outcomes, strict=True) if outcome == FORWARDED]
        assert 0 < len(forwarded) < len(large)
        later = stack.enter_context(attending(stub, key))
        got = [body for event in former for body in bodies_of(event)]
        assert len(got) < len(forwarded)
        while len(got) < len(forwarded):
            got += bodies_of(next(later))
        assert got == forwarded


def test_a_key_that_is_guessed_and_a_second_hello_are_rejected(stub: Any) -> None:
    hello = events_pb2.EventsRequest(client_id="c", inbox_key=os.urandom(32))
    for requests in (
        [events_pb2.EventsRequest(client_id="c", inbox_key=b"short")],
        [events_pb2.EventsRequest(client_id="", inbox_key=os.urandom(32))],
        [events_pb2.EventsRequest(client_id="c", producer_groups=["no/name"])],
        [hello, hello],
    ):
        with pytest.raises(grpc.RpcError) as raised:
            list(stub.Events(iter(requests), timeout=TIMEOUT_S))
        assert isinstance(from_rpc_error(raised.value, "broker"), InvalidArgument)


def test_replies_that_nobody_reads_are_dropped_and_others_get_theirs(stub: Any, cluster: LocalCluster) -> None:
    key, other = os.urandom(32), os.urandom(32)
    large = bytes(MAX_UNREAD_BYTES // 2)
    with closing(open_channel(cluster.brokers[0].address)) as channel, attending(stub, other) as reading:
        deaf = broker_pb2_grpc.BrokerStub(channel)
        with attending(deaf, key) as events:
            outcomes = reply(stub, inbox_of(key), *[large] * 64)
            assert outcomes[0] == FORWARDED
            assert outcomes[-1] == UNREAD
            assert reply(stub, inbox_of(other), b"x") == [FORWARDED]
            assert bodies_of(next(reading)) == [b"x"]
            for _ in range(outcomes.count(FORWARDED)):
                assert bodies_of(next(events)) == [large]
            assert reply(stub, inbox_of(key), b"y") == [FORWARDED]
            assert bodies_of(next(events)) == [b"y"]


def test_a_reply_is_as_large_as_a_message_at_most(stub: Any) -> None:
    key = os.urandom(32)
    with attending(stub, key) as events:
        assert reply(stub, inbox_of(key), bytes(5 << 20), bytes(4 << 20)) == [TOO_LARGE, FORWARDED]
        assert len(bodies_of(next(events))[0]) == 4 << 20
