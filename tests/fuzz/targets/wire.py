"""Requests and answers of servers, behind protobuf: random messages, and the code that makes values of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from random import Random
from typing import Any, Final, cast

import grpc
from google.protobuf.descriptor import Descriptor
from google.protobuf.message import Message

from fuzz import mutation
from fuzz.messages import MessageMaker, Pool
from fuzz.target import Target
from minimq.admin.descriptions import replication_from_wire, report_from_wire
from minimq.admin.group_descriptions import group_from_wire
from minimq.admin.name_server_queries import ConflictReport, offline_everywhere
from minimq.connection.offline_brokers import merge, view_from_wire
from minimq.features.transactions.decisions import Decision
from minimq_common.errors import InvalidArgument, MinimqError
from minimq_common.replicas.replica_set import ReplicaReport
from minimq_common.wire import rpc
from minimq_common.wire.convert import from_wire, route_from_wire
from minimq_nameserver.controller.table import ControllerTable
from minimq_nameserver.registrations import read_registration
from minimq_proto.v1 import broker_pb2, controller_pb2, errors_pb2, nameserver_pb2, staged_pb2

_NOW: Final = datetime(2026, 1, 31, tzinfo=UTC)


def _one_of(*values: Any) -> Pool:
    return lambda rng: rng.choice(values)


_POOLS: Final = {
    "topic": _one_of("t", "orders", "%RETRY%g"),
    "broker_name": _one_of("broker-a", "broker-b"),
    "cluster": _one_of("default", "c"),
    "address": _one_of("127.0.0.1:10911", "10.0.0.1:1"),
    "AddressesEntry.value": _one_of("127.0.0.1:10911", "10.0.0.1:1"),
    "AddressesEntry.key": _one_of(0, 1, 2),
    "log_id": _one_of("", "abc", "0" * 32),
    "in_sync": _one_of(0, 1, 2),
    "term": _one_of(0, 1, 2, 3),
    "ReplicaSet.version": _one_of(0, 1, 2, 3),
    "replica_id": _one_of(0, 1, 2),
    "run": _one_of(1, 2),
    "lease_ms": _one_of(1000, 3000),
    "min_in_sync": _one_of(1, 2),
    "read_queues": _one_of(1, 4, 1024, 1025),
    "write_queues": _one_of(1, 4, 1024, 1025),
}
_MAKER: Final = MessageMaker(_POOLS, sane=0.9)


def _made(kind: type[Message]) -> Callable[[Random], Message]:
    return lambda rng: _MAKER.make(rng, cast(Descriptor, kind.DESCRIPTOR))


def _reports(rng: Random) -> list[Message]:
    return [_MAKER.make(rng, controller_pb2.ReportRequest.DESCRIPTOR) for _ in range(rng.randint(1, 8))]


def _control(messages: list[Any]) -> None:
    """Let a controller decide by reports, as its service does; each of them may be rejected."""
    table = ControllerTable([], 3.0, 0.0)
    for now, message in enumerate(messages):
        try:
            report = from_wire(ReplicaReport, message)
            repaired = table.repaired(report)
            if repaired is not None:
                table.adopt(repaired, now)
            record = table.found(report, now) if table.record(report.key) is None else table.hear(report, now)
            if record is not None:
                table.adopt(record, now)
        except MinimqError:
            continue
        for record in table.elections(now + 10):
            table.adopt(record, now + 10)
        table.next_look_at(now), table.statuses(now)
        for status in table.statuses(now):
            assert 0 <= status.record.term << 32 < 1 << 63, "the term is too large for an epoch"
            controller_pb2.ReplicaSet(term=status.record.term, version=status.record.version)


def _register(message: Any) -> None:
    asyncio.run(read_registration(message, {"t"}))


def _see(message: Any) -> None:
    view = view_from_wire(message)
    merge([view, view])
    offline_everywhere([view])
    for conflict in message.conflicts:
        from_wire(ConflictReport, conflict, nameserver="127.0.0.1:1")


def _describe(message: Any) -> None:
    group = group_from_wire("g", {"broker-a": message}, {}, _NOW)
    _ = group.is_agreed, group.topics_differ, str(group)


class _Call(grpc.RpcError, grpc.Call):
    """A failed call, as a server that is none of ours may end it."""

    def __init__(self, rng: Random) -> None:
        self._code = rng.choice(list(grpc.StatusCode))
        self._details = (
            mutation.text(rng, ("DNS", "last error: x", "Connection refused", "")).encode(errors="replace").decode()
        )
        self._metadata = [
            (name, mutation.text(rng, ("0", "500", "-1", "NOT_MASTER", "SEND_FAILED", "INTERNAL")))
            for name in ("minimq-code", "minimq-retry-after-ms")
            if rng.random() < 0.8
        ]

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details

    def trailing_metadata(self) -> Any:
        return self._metadata

    def __repr__(self) -> str:
        return f"{self._code} {self._details!r} {self._metadata}"


_Call.__abstractmethods__ = frozenset()  # what is not asked for need not be there


def _fail(call: _Call) -> None:
    error = rpc.from_rpc_error(call, "broker 127.0.0.1:1")
    assert isinstance(error, MinimqError)
    _ = str(error), error.retry_after_s, rpc.to_failure(error)


_INVALID: Final = (InvalidArgument,)

TARGETS = (
    Target("wire.route", _made(nameserver_pb2.TopicRoute), route_from_wire, _INVALID),
    Target("wire.cluster", _made(nameserver_pb2.GetClusterResponse), _see, _INVALID),
    Target("wire.status", _made(broker_pb2.GetStatusResponse), report_from_wire, _INVALID),
    Target("wire.replication", _made(broker_pb2.ReplicationStatus), replication_from_wire, _INVALID),
    Target("wire.group", _made(broker_pb2.DescribeGroupResponse), _describe, _INVALID),
    Target("wire.decision", _made(staged_pb2.Decision), partial(from_wire, Decision), _INVALID),
    Target("wire.registration", _made(nameserver_pb2.RegisterRequest), _register, _INVALID, 0.5),
    Target("wire.failure", _made(errors_pb2.Failure), rpc.from_failure, ()),
    Target("wire.failed-call", _Call, _fail, ()),
    Target("wire.controller", _reports, _control, ()),
)
