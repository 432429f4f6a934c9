"""The bounds in the .proto files: every field of a request has one, and the check of them finds every breach."""

from __future__ import annotations

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor

from minimq_common.errors import InvalidArgument
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import broker_pb2, controller_pb2
from support.bounds import bounds_of, is_list, is_map, messages, requests
from support.cases import for_each

queue, wide = broker_pb2.QueueEpoch(), broker_pb2.QueueEpoch(topic="t" * 200)

NUMBERS = {
    FieldDescriptor.CPPTYPE_INT32,
    FieldDescriptor.CPPTYPE_INT64,
    FieldDescriptor.CPPTYPE_UINT32,
    FieldDescriptor.CPPTYPE_UINT64,
}


TEXTS = {FieldDescriptor.TYPE_STRING, FieldDescriptor.TYPE_BYTES}


@for_each("message", requests())
def test_every_field_of_a_request_has_a_bound(message: Descriptor) -> None:
    for field in message.fields:
        bounds, name = bounds_of(field), f"{message.name}.{field.name}"
        if is_map(field) or is_list(field):
            assert bounds.items, f"{name} may have any number of items: give it the option (max_items)"
        if (is_map(field) or field.type in TEXTS) and not bounds.by_item:
            assert bounds.size, f"{name} may have any size: give it the option (max_size)"


@for_each("message", messages())
def test_bounds_are_of_a_kind_that_the_field_can_have(message: Descriptor) -> None:
    for field in message.fields:
        bounds, name = bounds_of(field), f"{message.name}.{field.name}"
        assert bounds.size is None or field.type in TEXTS or is_map(field), name
        assert bounds.items is None or is_list(field) or is_map(field), name
        assert bounds.numbers is None or field.cpp_type in NUMBERS, f"{name} is not a number"
        assert not bounds.by_item or bounds.items, name


@for_each(
    ("message", "text"),
    [
        (broker_pb2.Append(topic="é" * 128), f"Append.topic has 128 characters, the limit is 127: '{'é' * 40}'..."),
        (
            broker_pb2.Append(transaction=broker_pb2.Transaction(number=-1)),
            "Append.transaction.number is -1: it is a number from 0 to 9223372036854775807",
        ),
        (
            broker_pb2.SessionRequest(join=broker_pb2.JoinGroup(filters=["", "f" * 65_537])),
            f"SessionRequest.join.filters[1] has 65537 characters, the limit is 65536: '{'f' * 40}'...",
        ),
        (
            broker_pb2.SessionRequest(release=broker_pb2.ReleaseQueues(queues=[*[queue] * 3, wide])),
            f"SessionRequest.release.queues[3].topic has 200 characters, the limit is 127: '{'t' * 40}'...",
        ),
        (
            broker_pb2.CommitOffsetsRequest(offsets=[broker_pb2.QueueOffset()] * 4097),
            "CommitOffsetsRequest.offsets has 4097 items, the limit is 4096: split it into several requests",
        ),
        (
            broker_pb2.PullRequest(max_messages=1),
            "PullRequest.max_bytes is 0: it is a number from 1 to 9223372036854775807",
        ),
        (
            controller_pb2.ReportRequest(known=controller_pb2.ReplicaSet(addresses={7: "a" * 261})),
            f"ReportRequest.known.addresses[7] has 261 characters, the limit is 260: '{'a' * 40}'...",
        ),
        (
            controller_pb2.ReportRequest(known=controller_pb2.ReplicaSet(addresses=dict.fromkeys(range(129), ""))),
            "ReportRequest.known.addresses has 129 entries, the limit is 128",
        ),
    ],
)
def test_a_breach_is_named_and_cut(message: object, text: str) -> None:
    with pytest.raises(InvalidArgument) as raised:
        check_bounds(message)
    assert raised.value.message == text
