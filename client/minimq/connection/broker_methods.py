"""The methods of a broker: those of the kernel's service as attributes, those of a feature by its file."""

from __future__ import annotations

from functools import cache, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from google.protobuf.message_factory import GetMessageClass

from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:  # at run time it is the plain stub
    from google.protobuf.descriptor import MethodDescriptor

    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub as BrokerStub
else:
    from minimq_proto.v1.broker_pb2_grpc import BrokerStub


class BrokerMethods(BrokerStub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel)  # type: ignore[call-arg]
        #: Returns the methods of a feature, such as `of(delayed_pb2).Recall`.
        self.of = cache(partial(_methods_of, channel))
        # Appends take encoded requests, each as a tuple of its parts.
        append, atomic = broker_pb2.AppendResponse, broker_pb2.AtomicAppendResponse
        self.Append = channel.stream_stream("/minimq.v1.Broker/Append", b"".join, append.FromString)
        self.AppendAtomic = channel.stream_stream("/minimq.v1.Broker/AppendAtomic", b"".join, atomic.FromString)


def _methods_of(channel: Any, file: Any) -> Any:
    # Not by the generated stubs: the operations, which name the methods, must not load gRPC.
    [service] = file.DESCRIPTOR.services_by_name.values()
    return SimpleNamespace(**{each.name: _method_of(channel, each) for each in service.methods})


def _method_of(channel: Any, method: MethodDescriptor) -> Any:
    make = channel.stream_stream if method.client_streaming else channel.unary_unary
    request, answer = map(GetMessageClass, (method.input_type, method.output_type))
    path = f"/{method.containing_service.full_name}/{method.name}"
    return make(path, request.SerializeToString, answer.FromString)
