"""The messages of the protocol, and some of each that break one bound."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor
from google.protobuf.message_factory import GetMessageClass

from minimq_common.wire.protocol_bounds import MAX_FRAME_BYTES, MAX_NUMBER
from minimq_proto.v1 import options_pb2
from support.protocol import FILES


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


def requests() -> list[Descriptor]:
    """Return all types of messages that a request is, or has in it."""
    found: dict[str, Descriptor] = {}

    def walk(message: Descriptor) -> None:
        if message.full_name not in found:
            found[message.full_name] = message
            for field in message.fields:
                if field.message_type is not None and not is_map(field):
                    walk(field.message_type)

    for method in methods():
        walk(method.input_type)
    return list(found.values())


def methods() -> list[MethodDescriptor]:
    """Return all methods of all services."""
    return [
        method
        for file in FILES
        for service in file.services_by_name.values()
        for method in service.methods_by_name.values()
    ]


class Bounds(NamedTuple):
    """The bounds of a field; None for those that it has not."""

    size: int | None
    items: int | None
    numbers: tuple[int, int] | None
    by_item: bool


def max_items(message: Any, field: str) -> int:
    """Return how many items a list of a message may have."""
    return int(message.DESCRIPTOR.fields_by_name[field].GetOptions().Extensions[options_pb2.max_items])


def bounds_of(field: FieldDescriptor) -> Bounds:
    options = field.GetOptions().Extensions
    numbers = None
    if options_pb2.min in options or options_pb2.max in options:
        numbers = options[options_pb2.min], options[options_pb2.max] or MAX_NUMBER
    return Bounds(
        options[options_pb2.max_size] or None,
        options[options_pb2.max_items] or None,
        numbers,
        options[options_pb2.by_item],
    )


def breaches(descriptor: Descriptor) -> Iterator[Breach]:
    """Yield, for every bound that a message of a type can break, also within others, one that does."""
    for field in descriptor.fields:
        for path, value in _bad_values(field, bounds_of(field)):
            message = _least(descriptor)
            _put(message, field, value)
            yield Breach(path, message)


def _least(descriptor: Descriptor) -> Any:
    """Return a message whose numbers are in their bounds."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        numbers = bounds_of(field).numbers
        if numbers is not None and numbers[0] > 0:
            setattr(message, field.name, numbers[0])
    return message


def _bad_values(field: FieldDescriptor, bounds: Bounds) -> Iterator[tuple[str, Any]]:
    name, size, items = field.name, bounds.size, bounds.items
    if is_map(field):
        yield f"{name}[0]", {0: _too_long(field, size or 0)}
        yield f"{name} has many", dict.fromkeys(range((items or 0) + 1), "")
    elif items is not None:
        yield f"{name} has many", [_empty(field)] * (items + 1)
        if size is not None:
            yield f"{name}[1]", [_empty(field), _too_long(field, size)]
        if field.message_type is not None:
            yield from ((f"{name}[0].{path}", [inner]) for path, inner in breaches(field.message_type))
    elif bounds.numbers is not None:
        least, most = bounds.numbers
        yield from ((f"{name}={value}", value) for value in (least - 1, most + 1) if _fits(field, value))
    elif size is not None and size < MAX_FRAME_BYTES:
        yield name, _too_long(field, size)
    elif field.message_type is not None and not is_list(field):
        yield from ((f"{name}.{path}", inner) for path, inner in breaches(field.message_type))


def _fits(field: FieldDescriptor, value: int) -> bool:
    bits = 32 if field.cpp_type in (FieldDescriptor.CPPTYPE_INT32, FieldDescriptor.CPPTYPE_UINT32) else 64
    return -(1 << bits - 1) <= value < 1 << bits - 1


def _too_long(field: FieldDescriptor, most: int) -> str | bytes:
    return bytes(most + 1) if field.type == FieldDescriptor.TYPE_BYTES else "x" * (most + 1)


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
