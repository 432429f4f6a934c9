"""One value of each type, with different content in each field, the same in every run."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass


def sample(kind: Any, numbers: Iterator[int] | None = None) -> Any:  # noqa: PLR0911 - a table of types
    """Return a value of a type: a struct, a named tuple, an enum, a scalar, or a tuple of those."""
    numbers = numbers or count(1)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        most = [each.le for each in args[1:] if isinstance(each, msgspec.Meta) and each.le is not None]
        return min([sample(args[0], numbers), *most])
    if origin in (types.UnionType, typing.Union):
        return sample(next(each for each in args if each not in (types.NoneType, msgspec.UnsetType)), numbers)
    if origin is tuple:
        parts = args[:1] * 2 if args[-1] is ... else args
        return tuple(sample(each, numbers) for each in parts)
    if origin is dict:
        return {sample(args[0], numbers): sample(args[1], numbers)}
    if origin in (list, frozenset):
        return origin([sample(args[0], numbers)])
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return [*kind][-1]
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        hints = typing.get_type_hints(kind, include_extras=True)
        names = kind.__struct_fields__ if issubclass(kind, msgspec.Struct) else kind._fields
        return kind(**{name: sample(hints[name], numbers) for name in names})
    number = next(numbers)
    made = {int: number, bool: True, str: f"text-{number}", bytes: b"bytes-%d" % number}
    return made[kind]


def filled(descriptor: Descriptor, depth: int = 4) -> Message:
    """Return a message with a value in each field; of a `oneof`, in the last one."""
    message = GetMessageClass(descriptor)()
    for field in descriptor.fields:
        if field.message_type is not None and not depth:
            continue
        if field.message_type is not None and field.message_type.GetOptions().map_entry:
            key, value = field.message_type.fields
            held = getattr(message, field.name)
            if value.message_type is not None:
                held[_scalar(key)].CopyFrom(filled(value.message_type, depth - 1))
            else:
                held[_scalar(key)] = _scalar(value)
        elif field.message_type is not None:
            made = filled(field.message_type, depth - 1)
            if field.is_repeated:
                getattr(message, field.name).append(made)
            else:
                getattr(message, field.name).CopyFrom(made)
        elif field.is_repeated:
            getattr(message, field.name).append(_scalar(field))
        else:
            setattr(message, field.name, _scalar(field))
    return message


def _scalar(field: FieldDescriptor) -> Any:
    if field.enum_type is not None:
        return field.enum_type.values[-1].number
    kinds: dict[int, Any] = {
        FieldDescriptor.CPPTYPE_STRING: f"text-{field.number}",
        FieldDescriptor.CPPTYPE_BOOL: True,
        FieldDescriptor.CPPTYPE_DOUBLE: field.number + 0.5,
        FieldDescriptor.CPPTYPE_FLOAT: field.number + 0.5,
    }
    value = kinds.get(field.cpp_type, field.number)
    return value.encode() if field.type == FieldDescriptor.TYPE_BYTES else value
