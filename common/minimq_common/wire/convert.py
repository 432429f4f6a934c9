"""Conversions between dataclasses and messages of the protocol, whose fields have the same names.

A time in seconds (`lease_s`) and a moment (`first_at`) are milliseconds in a message (`lease_ms`, `first_ms`). The rest
follows from the types: None is a field that is not set, a set travels sorted, and an enum of the protocol is its name
in a text, such as "delete-early" for DISK_LEVEL_DELETE_EARLY.
"""

from __future__ import annotations

import dataclasses
import re
import types
import typing
from collections.abc import Callable, Mapping
from datetime import datetime
from enum import IntFlag
from functools import cache
from typing import Any, TypeVar

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor
from google.protobuf.message_factory import GetMessageClass

from minimq_common.moments import moment

T = TypeVar("T")
_Convert = Callable[[Any], Any]


def from_wire(kind: type[T], message: Any, **given: Any) -> T:
    """Return a dataclass of a message; values that are given come in place of fields."""
    for name, read in _readers(kind, message.DESCRIPTOR):  # type: ignore[arg-type]
        if name not in given:
            given[name] = read(message)
    return kind(**given)


def to_wire(message: type[T], value: Any, **given: Any) -> T:
    """Return a message of a dataclass; values that are given come in place of fields."""
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
        return lambda bits: hint(bits & sum(hint))  # without bits that this version does not know
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
