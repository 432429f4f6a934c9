"""The files and services of the wire protocol."""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import Any

from google.protobuf.descriptor import FileDescriptor, MethodDescriptor, ServiceDescriptor
from google.protobuf.message_factory import GetMessageClass

import minimq_proto.v1

#: Without the options for the others.
FILES: tuple[FileDescriptor, ...] = tuple(
    import_module(f"minimq_proto.v1.{each.name}").DESCRIPTOR
    for each in pkgutil.iter_modules(minimq_proto.v1.__path__)
    if each.name.endswith("_pb2") and each.name != "options_pb2"
)
SERVICES: tuple[ServiceDescriptor, ...] = tuple(service for file in FILES for service in file.services_by_name.values())
METHODS: tuple[MethodDescriptor, ...] = tuple(method for service in SERVICES for method in service.methods)
_OF_NAMESERVER = ("NameServer", "Controller")


def is_of_nameserver(service: ServiceDescriptor) -> bool:
    """Return whether a name server serves it; all others are those of brokers."""
    return service.name in _OF_NAMESERVER


def call_of(channel: Any, method: MethodDescriptor) -> Any:
    """Return the call of a method through a channel, blocking or asyncio."""
    kind = f"{'stream' if method.client_streaming else 'unary'}_{'stream' if method.server_streaming else 'unary'}"
    request, answer = map(GetMessageClass, (method.input_type, method.output_type))
    path = f"/{method.containing_service.full_name}/{method.name}"
    return getattr(channel, kind)(path, request.SerializeToString, answer.FromString)
