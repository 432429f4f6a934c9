"""No request, and no text in one, comes in without a decision about the right that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from google.protobuf import message_factory
from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message import Message
from grpc_health.v1 import health_pb2

from minimq_common.security.needs import CallerKind, access_of, needs_of
from minimq_proto.v1 import broker_pb2, search_pb2, staged_pb2, work_queues_pb2
from support import protocol
from support.cases import for_each

HEALTH: Any = health_pb2.DESCRIPTOR.services_by_name["Health"]
METHODS: list[MethodDescriptor] = [*protocol.METHODS, HEALTH.methods_by_name["Check"]]
MARK = "mark"

_CLIENT = "names a member: a session, and a lease with it, is of the user that opened it"
_HELD = "says what the member holds, here and elsewhere: it is granted by acquire, which takes the right to the topic"
_SELECTS = "selects messages of topics whose right is checked"
_BROKERS = "names brokers, which are no secret of users"

#: Texts that take no right, each with the reason.
EXEMPT = {
    "PullRequest.lease.client_id": _CLIENT,
    "FindRequest.key": _SELECTS,
    "FindRequest.property_value": _SELECTS,
    "PopRequest.client_id": _CLIENT,
    "PopRequest.takes.filter": _SELECTS,
    "SessionRequest.client_id": _CLIENT,
    "AtomicAppendRequest.appends.progress.commit.client_id": _CLIENT,
    "EventsRequest.client_id": _CLIENT,
    "CommitOffsetsRequest.client_id": _CLIENT,
    "SessionRequest.join.allocation": "is the name of a strategy",
    "SessionRequest.join.filters": _SELECTS,
    "SessionRequest.join.held.topic": _HELD,
    "SessionRequest.join.held.broker_name": _BROKERS,
    "SessionRequest.holding.queues.topic": _HELD,
    "SessionRequest.holding.queues.broker_name": _BROKERS,
    "SessionRequest.saved.queues.topic": _HELD,
    "SessionRequest.release.queues.topic": _HELD,
    "CommitTransactionRequest.decision.parts.broker_name": _BROKERS,
    "CommitTransactionRequest.decision.broker_names": _BROKERS,
    "CommitTransactionRequest.batches.broker_name": _BROKERS,
    "ForgetBrokerRequest.broker_name": "the cluster is one thing: who manages it manages all its brokers",
    "PromoteReplicaRequest.cluster": "the cluster is one thing: who manages it manages all its brokers",
    "PromoteReplicaRequest.broker_name": "the cluster is one thing: who manages it manages all its brokers",
    "HealthCheckRequest.service": "all services have the same health",
}


@for_each("method", METHODS)
def test_each_call_has_a_rule(method: MethodDescriptor) -> None:
    access_of(method)


def test_each_text_of_a_request_is_in_a_need_or_exempt_for_a_reason() -> None:
    undecided, exempt = [], set()
    for method in METHODS:
        for path in _texts(method.input_type):
            request = message_factory.GetMessageClass(method.input_type)()
            _set(request, path)
            if access_of(method).kind is CallerKind.SERVER or any(MARK in need.name for need in needs_of(request)):
                continue
            name = ".".join((method.input_type.name, *(field.name for field in path)))
            exempt.add(name)
            if name not in EXEMPT:
                undecided.append(name)
    assert undecided == []
    assert set(EXEMPT) == exempt, "these exemptions are of texts that are gone, or that are in a need"


@for_each(
    ("request_", "expected"),
    [
        (broker_pb2.Append(topic="t"), "write topic t"),
        (
            broker_pb2.Append(topic="t", transaction=broker_pb2.Transaction(name="x")),
            "write topic t, write transaction x",
        ),
        (
            broker_pb2.AtomicAppend(
                batches=[broker_pb2.AtomicBatch(topic=name) for name in "aba"],
                progress=broker_pb2.AtomicProgress(
                    commit=broker_pb2.CommitOffsetsRequest(group="g", offsets=[broker_pb2.QueueOffset(topic="c")]),
                    group="h",
                    settles=[broker_pb2.PopSettle(topic="d")],
                ),
            ),
            "write topic a, write topic b, read group g, read topic c, read group h, read topic d",
        ),
        (staged_pb2.EndHalfRequest(producer_group="p"), "write transaction p"),
        (broker_pb2.PullRequest(topic="t"), "read topic t"),
        (search_pb2.FindRequest(topic="t"), "read topic t"),
        (broker_pb2.PullRequest(topic="t", lease=broker_pb2.Lease(group="g")), "read topic t, read group g"),
        (broker_pb2.PullRequest(cancel=True), ""),
        (
            work_queues_pb2.PopRequest(
                group="g",
                settles=[broker_pb2.PopSettle(topic="s")],
                takes=[work_queues_pb2.PopTake(topic="t"), work_queues_pb2.PopTake(topic="t")],
            ),
            "read group g, read topic s, read topic t",
        ),
        (broker_pb2.CreateTopicRequest(topic=broker_pb2.Topic(topic="t")), "manage topic t"),
        (broker_pb2.CreateTopicRequest(topic=broker_pb2.Topic(topic="t"), automatic=True), "write topic t"),
        (broker_pb2.CreateTopicRequest(topic=broker_pb2.Topic(topic="%DLQ%g")), "write topic %DLQ%g"),
        (broker_pb2.GetCommittedRequest(group="g"), "describe group g"),
        (broker_pb2.DeleteGroupRequest(group="g"), "manage group g"),
    ],
)
def test_what_a_request_takes(request_: Message, expected: str) -> None:
    assert ", ".join(map(str, needs_of(request_))) == expected


def _texts(message: Descriptor) -> Iterator[tuple[FieldDescriptor, ...]]:
    for field in message.fields:
        if field.type == FieldDescriptor.TYPE_STRING:
            yield (field,)
        elif field.message_type is not None and _is_map(field):
            yield (field,)  # all are of requests of servers
        elif field.message_type is not None:
            yield from ((field, *rest) for rest in _texts(field.message_type))


def _is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and bool(field.message_type.GetOptions().map_entry)


def _set(message: Any, path: tuple[FieldDescriptor, ...]) -> None:
    field, *rest = path
    if _is_map(field):
        getattr(message, field.name)[0] = MARK
    elif rest:
        inner = getattr(message, field.name)
        _set(inner.add() if field.is_repeated else inner, tuple(rest))
    elif field.is_repeated:
        getattr(message, field.name).append(MARK)
    else:
        setattr(message, field.name, MARK)
