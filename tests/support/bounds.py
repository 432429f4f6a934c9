"""The messages of the protocol, and some of each that break one bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, FileDescriptor
from google.protobuf.message_factory import GetMessageClass

from minimq_common.wire.bound_kinds import Bound, Entries, Items, Octets, Range, Text
from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES
from minimq_common.wire.server_bounds import ALL_BOUNDS
from minimq_proto.v1 import (
    attend_pb2,
    broker_pb2,
    controller_pb2,
    delay_pb2,
    errors_pb2,
    find_pb2,
    halves_pb2,
    nameserver_pb2,
    replication_pb2,
)

FILES: tuple[FileDescriptor, ...] = tuple(
    module.DESCRIPTOR
    for module in (
        attend_pb2,
        broker_pb2,
        controller_pb2,
        delay_pb2,
        errors_pb2,
        halves_pb2,
        find_pb2,
        nameserver_pb2,
        replication_pb2,
    )
)


class Breach(NamedTuple):
    """A message that breaks one bound, and where."""

    path: str
    message: Any


def messages() -> list[Descriptor]:
    """Return all types of messages."""
    return [message for file in FILES for message in file.message_types_by_name.values()]


def is_map(field: FieldDescriptor) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def is_list(field: FieldDescriptor) -> bool:
    # Without "label", of which newer releases of protobuf warn, and "is_repeated", which older ones lack.
    default = field.default_value
    return isinstance(default, list | tuple) and not is_map(field)


def breaches(descriptor: Descriptor) -> Iterator[Breach]:
    """Yield, for every bound that a message of a type can break, also within others, one that does."""
    for field in descriptor.fields:
        for path, value in _bad_values(field, ALL_BOUNDS[descriptor.name].get(field.name)):
            message = _least(descriptor)
            _put(message, field, value)
            yield Breach(path, message)


def _least(descriptor: Descriptor) -> Any:
    """Return a message whose numbers are in their bounds."""
    message = GetMessageClass(descriptor)()
    for name, bound in ALL_BOUNDS[descriptor.name].items():
        if isinstance(bound, Range) and bound.least > 0:
            setattr(message, name, bound.least)
    return message


def _bad_values(field: FieldDescriptor, bound: Bound | None) -> Iterator[tuple[str, Any]]:
    name = field.name
    match bound:
        case Text() | Octets():
            if bound.most < MAX_FRAME_BYTES:
                yield name, _too_long(bound)
        case Range(least, most):
            yield from ((f"{name}={value}", value) for value in (least - 1, most + 1) if _fits(field, value))
        case Entries(most, each):
            yield f"{name}[0]", {0: _too_long(each)}
            yield f"{name} has many", dict.fromkeys(range(most + 1), "")
        case Items(most, each) if most < MAX_FRAME_BYTES:
            yield f"{name} has many", [_empty(field)] * (most + 1)
            if isinstance(each, Text | Octets):
                yield f"{name}[1]", [_empty(field), _too_long(each)]
    if field.message_type is not None and not is_map(field) and bound is None:
        yield from ((f"{name}.{path}", inner) for path, inner in breaches(field.message_type))
    elif isinstance(bound, Items) and bound.most < MAX_FRAME_BYTES and field.message_type is not None:
        yield from ((f"{name}[0].{path}", [inner]) for path, inner in breaches(field.message_type))


def _fits(field: FieldDescriptor, value: int) -> bool:
    bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _too_long(bound: Text | Octets) -> str | bytes:
    return "x" * (bound.most + 1) if isinstance(bound, Text) else bytes(bound.most + 1)


def _empty(field: FieldDescriptor) -> Any:
    if field.message_type is not None:
        return GetMessageClass(field.message_type)()
    return {FieldDescriptor.TYPE_STRING: "", FieldDescriptor.TYPE_BYTES: b""}.get(field.type, 0)


def _put(message: Any, field: FieldDescriptor, value: Any) -> None:
    if is_map(field):
        getattr(message, field.name).update(value)
    elif is_list(field):
        getattr(message, field.name).extend(value)
    elif field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    else:
        setattr(message, field.name, value)
