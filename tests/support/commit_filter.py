"""Stands between a writer and a broker, which seems to take its time to publish a transaction."""

from __future__ import annotations

import time

import grpc

from minimq_proto.v1 import broker_pb2
from support.call_relay import CallRelay

#: What a commit takes that runs out of time, in seconds.
_CALL_S = 0.1


class CommitFilter(CallRelay):
    """A relay that holds commits back until it has told how much is left.

    Attributes:
        left: bytes that are left to publish, as whoever asks after a commit is told one after the other. Until then
            commits run out of time, and do not get to the broker.
    """

    def __init__(self, broker: str) -> None:
        self.left: list[int] = []
        self._held = False
        super().__init__(broker)

    def begins(self, method: str, request: bytes, context: grpc.ServicerContext) -> None:
        if not (method.endswith("/CommitTransaction") and self.left):
            return
        if broker_pb2.CommitTransactionRequest.FromString(request).HasField("decision"):
            self._held = True
            time.sleep(_CALL_S)
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "as if the time was up")

    def passed_on(self, method: str, answer: bytes) -> bytes | None:
        if not (method.endswith("/CommitTransaction") and self._held and self.left):
            return answer
        told = broker_pb2.CommitTransactionResponse.FromString(answer)
        told.staged_bytes = self.left.pop(0)
        return told.SerializeToString()
