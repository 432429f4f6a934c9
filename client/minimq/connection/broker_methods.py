"""The methods of a broker: those of the kernel's service as attributes, those of features by their service."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:  # at run time it is the plain stub
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub as BrokerStub
else:
    from minimq_proto.v1.broker_pb2_grpc import BrokerStub


class BrokerMethods(BrokerStub):
    def __init__(self, channel: Any) -> None:
        super().__init__(channel)  # type: ignore[call-arg]
        #: Returns the methods of a feature's service, by the class of its stub.
        self.of = cache(lambda service: service(channel))
        # Appends take encoded requests, each as a tuple of its parts.
        append, atomic = broker_pb2.AppendResponse, broker_pb2.AtomicAppendResponse
        self.Append = channel.stream_stream("/minimq.v1.Broker/Append", b"".join, append.FromString)
        self.AppendAtomic = channel.stream_stream("/minimq.v1.Broker/AppendAtomic", b"".join, atomic.FromString)
