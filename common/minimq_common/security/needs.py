"""The rights that each request needs, from the options in the `.proto` files.

Options of methods define who may call them. Options of fields mark the resources that a request is about, since one
stream carries requests about many resources.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from operator import attrgetter
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, FieldDescriptor, MethodDescriptor

from minimq_common.names import DEAD_LETTER_PREFIX, REPLY_PREFIX, RETRY_PREFIX
from minimq_common.security.access_rule import Need, Resource, Verb, need_of
from minimq_proto.v1 import options_pb2


class CallerKind(Enum):
    #: Strangers, too: the server does not read the request of such a call.
    ANYBODY = "anybody"
    USER = "users"
    SERVER = "servers"


@dataclass(frozen=True, slots=True)
class CallAccess:
    """The callers that may make a call, independent of its requests."""

    kind: CallerKind = CallerKind.USER
    #: The right to the cluster that a user needs.
    need: Need | None = None
    #: Servers do not need this right.
    or_server: bool = False


def access_of(method: MethodDescriptor) -> CallAccess:
    """Return who may call a method. Raises `RuntimeError` if its option is missing; then the server does not start."""
    if method.full_name == "grpc.health.v1.Health.Check":  # its `.proto` file does not have our options
        return CallAccess(CallerKind.ANYBODY)
    options = method.GetOptions().Extensions
    text = options[options_pb2.access]
    if not text:
        raise RuntimeError(f"{method.full_name} does not say who may call it: give it the option (access)")
    if text in {kind.value for kind in CallerKind}:
        return CallAccess(CallerKind(text))
    return CallAccess(need=need_of(*text.split()), or_server=options[options_pb2.or_server])


def needs_of(request: Any) -> tuple[Need, ...]:
    """Return the distinct rights that a request needs, besides those of `access_of`."""
    return tuple(dict.fromkeys(_needs(request)))


class _Rule(NamedTuple):
    #: Returns the resources that the field is about, or messages with rules of their own.
    parts: Callable[[Any], Iterable[Any]]
    #: Empty if the parts are messages with rules of their own.
    verb: str = ""
    resource: Resource = Resource.CLUSTER
    if_named: bool = False
    #: The field of a part that contains the name; empty if the part is the name.
    name: str = ""


#: The compiled rules of each message type seen so far.
_rules: dict[Descriptor, tuple[_Rule, ...]] = {}


def _compile(descriptor: Descriptor) -> tuple[_Rule, ...]:
    if descriptor not in _rules:
        _rules[descriptor] = tuple(rule for field in descriptor.fields if (rule := _rule_of(field)) is not None)
    return _rules[descriptor]


def _rule_of(field: FieldDescriptor) -> _Rule | None:
    options, inner, name = field.GetOptions().Extensions, field.message_type, field.name
    is_list = isinstance(field.default_value, list | tuple)  # older releases of protobuf lack `is_repeated`
    if not (right := options[options_pb2.right]):
        if inner is None or inner.GetOptions().map_entry or not _compile(inner):
            return None
        if is_list:
            return _Rule(attrgetter(name))
        return _Rule(lambda message: [getattr(message, name)] if message.HasField(name) else [])
    verb, resource = right.split()
    named = (verb, Resource(resource), options[options_pb2.if_named])
    if field.type == FieldDescriptor.TYPE_BOOL:
        return _Rule(lambda message: [message] if getattr(message, name) else [], *named, resource)
    at = "" if inner is None else resource
    return _Rule(attrgetter(name) if is_list else lambda message: [getattr(message, name)], *named, at)


def _needs(message: Any) -> Iterator[Need]:
    for parts, verb, resource, if_named, at in _compile(message.DESCRIPTOR):
        for part in parts(message):
            if not verb:
                yield from _needs(part)
                continue
            name = getattr(part, at) if at else part
            if name or not if_named:
                yield Need(_verb(verb, name, message), resource, name)


def _verb(verb: str, name: str, request: Any) -> Verb:
    if verb != "create":
        return Verb(verb)
    if name.startswith(REPLY_PREFIX):
        return Verb.READ  # requesters create it
    # The members of a group create its topics. To write them, they need the right to read the group.
    is_used = request.automatic or name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX))
    return Verb.WRITE if is_used else Verb.MANAGE
