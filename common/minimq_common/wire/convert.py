"""Converts between dataclasses and messages of the protocol by the names of their fields.

A duration in seconds (`lease_s`) and a point in time (`first_at`) are milliseconds in a message (`lease_ms`,
`first_ms`). Other conversions follow from the types: None is an unset field, a set is sent as a sorted list, and an
enum value becomes text, such as "delete-early" for DISK_LEVEL_DELETE_EARLY. Routes, brokers and records are validated.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import datetime
from enum import IntFlag
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from minimq_common.errors import InvalidArgument
from minimq_common.model import (
    MAX_QUEUES,
    MAX_QUEUES_OF_A_TOPIC,
    BrokerData,
    OfflineBroker,
    Permission,
    QueueData,
    TopicRoute,
)
from minimq_common.names import check_address, check_broker, check_cluster, check_topic
from minimq_common.replicas.replica_set import ReplicaSet, check_record
from minimq_common.timestamps import moment
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import controller_pb2, nameserver_pb2

T = TypeVar("T")
_Convert = Callable[[Any], Any]


def from_wire(kind: type[T], message: Any, **given: Any) -> T:
    """Convert a message to a dataclass; `given` values override its fields."""
    for name, read in _readers(kind, message.DESCRIPTOR):  # type: ignore[arg-type]
        if name not in given:
            given[name] = read(message)
    return kind(**given)


def to_wire(message: type[T], value: Any, **given: Any) -> T:
    """Convert a dataclass to a message; `given` values override its fields."""
    for name, source, convert in _writers(type(value), message.DESCRIPTOR):  # type: ignore[arg-type, attr-defined]
        if name not in given and (found := getattr(value, source)) is not None:
            given[name] = convert(found)
    return message(**given)


@cache
def _readers(kind: type, descriptor: Descriptor) -> tuple[tuple[str, _Convert], ...]:
    hints = typing.get_type_hints(kind)
    found = ((name, _field_of(name, descriptor), hints[name]) for name in _names(kind))
    return tuple((name, _reader(field, hint)) for name, field, hint in found if field is not None)


@cache
def _writers(kind: type, descriptor: Descriptor) -> tuple[tuple[str, str, _Convert], ...]:
    found = ((name, _field_of(name, descriptor)) for name in _names(kind))
    return tuple((field.name, name, _writer(name, field)) for name, field in found if field is not None)


def _names(kind: type) -> list[str]:
    return [field.name for field in dataclasses.fields(kind)]


def _field_of(name: str, descriptor: Descriptor) -> FieldDescriptor | None:
    in_ms = re.sub("_(s|at)$", "", name) + "_ms"
    return descriptor.fields_by_name.get(name) or descriptor.fields_by_name.get(in_ms)


def _reader(field: FieldDescriptor, hint: Any) -> _Convert:
    name, kinds = field.name, typing.get_args(hint)
    is_optional = isinstance(hint, types.UnionType) and type(None) in kinds
    if is_optional:
        [hint] = set(kinds) - {type(None)}
    convert = _value_reader(field, hint)
    if is_optional and field.has_presence:
        return lambda message: convert(getattr(message, name)) if message.HasField(name) else None
    if is_optional:
        return lambda message: convert(found) if (found := getattr(message, name)) else None
    return lambda message: convert(getattr(message, name))


def _value_reader(field: FieldDescriptor, hint: Any) -> _Convert:
    origin = typing.get_origin(hint)
    if origin is Mapping:
        return lambda entries: dict(sorted(entries.items()))
    if origin in (tuple, frozenset):
        each = _item_reader(field, typing.get_args(hint)[0])
        return lambda items: origin(map(each, items))
    return _item_reader(field, hint)


def _item_reader(field: FieldDescriptor, hint: Any) -> _Convert:
    if dataclasses.is_dataclass(hint):
        return lambda message: from_wire(hint, message)  # type: ignore[arg-type]
    if hint is datetime:
        return moment
    if hint is float and field.name.endswith("_ms"):
        return lambda ms: ms / 1000
    if isinstance(hint, type) and issubclass(hint, IntFlag):
        return lambda bits: hint(bits & sum(hint))  # drops bits that this version does not know
    if hint is str and field.enum_type is not None:
        texts = {number: _text(field.enum_type, number) for number in field.enum_type.values_by_number}
        return lambda number: texts.get(number, "unknown")
    return lambda value: value


def _text(kind: EnumDescriptor, number: int) -> str:
    prefix = re.sub("(?<!^)(?=[A-Z])", "_", kind.name).upper() + "_"
    return kind.values_by_number[number].name.removeprefix(prefix).lower().replace("_", "-")


def _writer(name: str, field: FieldDescriptor) -> _Convert:
    if field.name != name:
        return lambda seconds: round(seconds * 1000)
    inner = field.message_type
    if inner is not None and inner.GetOptions().map_entry:
        return dict
    made = None if inner is None else GetMessageClass(inner)
    if isinstance(field.default_value, list | tuple):
        if made is not None:
            return lambda values: [to_wire(made, value) for value in values]
        return lambda values: sorted(values) if isinstance(values, frozenset) else values
    return (lambda value: value) if made is None else lambda value: to_wire(made, value)


def permission_from_wire(bits: int) -> Permission:
    """Return the permission, without bits that this version does not know."""
    return Permission(bits & Permission.READ_WRITE)


def broker_from_wire(message: nameserver_pb2.BrokerData) -> BrokerData:
    """Validate and convert a broker; its addresses are sorted by broker id. Raises `InvalidArgument`."""
    check_bounds(message)
    check_broker(message.broker_name)
    check_cluster(message.cluster)
    for address in message.addresses.values():
        check_address(address)
    return from_wire(BrokerData, message)


def offline_from_wire(message: nameserver_pb2.OfflineBroker) -> OfflineBroker:
    """Validate and convert a broker that has gone. Raises `InvalidArgument`."""
    return from_wire(OfflineBroker, message, **asdict(broker_from_wire(message.broker)))


def route_to_wire(route: TopicRoute) -> nameserver_pb2.TopicRoute:
    """Convert a route to a message, without the offline brokers."""
    return nameserver_pb2.TopicRoute(
        topic=route.topic,
        queues=[to_wire(nameserver_pb2.QueueData, data) for data in route.queues],
        brokers=[to_wire(nameserver_pb2.BrokerData, broker) for broker in route.brokers.values()],
    )


def queue_data(
    broker_name: str, read_queues: int, write_queues: int, permission: int, key_queues: int = 0, topic: str = ""
) -> QueueData:
    """Validate and return the queues of a topic on one broker. Raises `InvalidArgument`."""
    for count in (read_queues, write_queues):
        if not 0 <= count <= MAX_QUEUES:
            raise InvalidArgument(f"a topic has {count} queues on broker {broker_name!r}, the limit is {MAX_QUEUES}")
    if not 0 <= key_queues <= MAX_QUEUES_OF_A_TOPIC:
        raise InvalidArgument(f"a topic has {key_queues} queues on all brokers, the limit is {MAX_QUEUES_OF_A_TOPIC}")
    return QueueData(broker_name, read_queues, write_queues, permission_from_wire(permission), key_queues, topic)


def route_from_wire(message: nameserver_pb2.TopicRoute) -> TopicRoute:
    """Validate and convert a route; its queues are sorted by broker name. Raises `InvalidArgument`."""
    check_bounds(message)
    check_topic(message.topic)
    queues = [
        queue_data(
            check_broker(data.broker_name),
            data.read_queues,
            data.write_queues,
            data.permission,
            data.key_queues,
            message.topic,
        )
        for data in message.queues
    ]
    number = sum(max(data.read_queues, data.write_queues) for data in queues)
    if number > MAX_QUEUES_OF_A_TOPIC:
        raise InvalidArgument(f"topic {message.topic} has {number} queues, the limit is {MAX_QUEUES_OF_A_TOPIC}")
    if len({data.broker_name for data in queues}) < len(queues):
        raise InvalidArgument(f"the route of topic {message.topic} names a broker twice")
    return TopicRoute(
        topic=message.topic,
        queues=tuple(sorted(queues, key=lambda data: data.broker_name)),
        brokers={broker.broker_name: broker_from_wire(broker) for broker in message.brokers},
        offline=tuple(map(offline_from_wire, message.offline)),
        run=message.run,
    )


def replica_set_from_wire(message: controller_pb2.ReplicaSet) -> ReplicaSet:
    """Validate and convert the record of a replica set. Raises `InvalidArgument`."""
    record = from_wire(ReplicaSet, message)
    check_record(record)
    return record
