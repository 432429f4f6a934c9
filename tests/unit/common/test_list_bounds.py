"""A request with a list that is too long is cut before it is opened, and is refused all the same."""

from __future__ import annotations

import random

import pytest
from google.protobuf.message import DecodeError, Message

from minimq_common.bound_check import check_bounds
from minimq_common.errors import InvalidArgument
from minimq_common.large_fields import field_head
from minimq_common.list_bounds import ListCut, lists_of
from minimq_common.protocol_bounds import MAX_NAMED
from minimq_proto.v1 import broker_pb2, find_pb2
from support.chance import SEED

QUEUE = broker_pb2.QueueName(topic="t", broker_name="b", queue_id=300)
JOIN = broker_pb2.JoinGroup(group="g", topics=["t", "u"], allocation="averagely", hold_ms=1, filters=["", "x"])


def kept(data: bytes) -> tuple[bytes, int]:
    """Return what is left of a request of a session, and in how many steps."""
    lists = lists_of(broker_pb2.SessionRequest.FromString)
    assert lists is not None
    cut = ListCut(data, lists)
    steps = sum(1 for _ in cut.steps())
    return cut.kept, steps


def opened(data: bytes) -> Message | None:
    """Return what a request says; None if it is refused."""
    try:
        request = broker_pb2.SessionRequest.FromString(data)
        check_bounds(request)
    except (DecodeError, InvalidArgument):
        return None
    return request


def test_what_is_left_of_two_million_items_is_refused_and_says_who_sent_it() -> None:
    first = broker_pb2.SessionRequest(client_id="c", join=JOIN).SerializeToString()
    inner = bytes((broker_pb2.JoinGroup.DESCRIPTOR.fields_by_name["held"].number << 3 | 2, 0)) * (1 << 20)
    head = field_head(broker_pb2.SessionRequest.DESCRIPTOR.fields_by_name["join"].number, len(inner))
    left, steps = kept(first + head + inner)
    assert len(left) < len(first) + 3 * MAX_NAMED
    assert 2 < steps < 10
    request = broker_pb2.SessionRequest.FromString(left)
    assert (request.client_id, request.join.group, len(request.join.held)) == ("c", "g", MAX_NAMED + 1)
    with pytest.raises(InvalidArgument, match=r"join.held has 4097 items, the limit is 4096"):
        check_bounds(request)


def test_items_that_come_in_several_parts_count_together() -> None:
    part = broker_pb2.SessionRequest(join=broker_pb2.JoinGroup(held=[QUEUE] * (MAX_NAMED - 1))).SerializeToString()
    assert kept(part)[0] is part
    two = part + part
    assert opened(two) is None
    left, _ = kept(two)
    assert len(left) < len(part) + 100
    assert opened(left) is None


def test_requests_without_lists_are_not_looked_at() -> None:
    assert lists_of(find_pb2.FindRequest.FromString) is None
    assert lists_of(bytes) is None


def test_what_is_cut_is_refused_and_all_else_is_left_as_it_came() -> None:
    choices = random.Random(SEED)
    requests = [
        broker_pb2.SessionRequest(client_id="c", join=JOIN),
        broker_pb2.SessionRequest(holding=broker_pb2.Holding(group="g", queues=[QUEUE] * 3, adds=True)),
        broker_pb2.SessionRequest(
            acquire=broker_pb2.AcquireQueues(group="g", queues=[broker_pb2.QueueEpoch(topic="t", epoch=1 << 60)])
        ),
        broker_pb2.SessionRequest(heartbeat=broker_pb2.Heartbeat(number=1 << 62)),
    ]
    cut = 0
    for _ in range(2_000):
        data = bytearray(choices.choice(requests).SerializeToString())
        for _ in range(choices.randrange(3)):
            data[choices.randrange(len(data))] = choices.randrange(256)
        whole = bytes(data[: choices.randrange(len(data)) + 1])
        left, _ = kept(whole)
        if left is not whole:
            cut += 1
            assert opened(left) is None, whole
    assert cut > 100
    assert all(kept(request.SerializeToString())[0] == request.SerializeToString() for request in requests)
