"""Stands between a consumer and a broker, and holds messages back that are handed out while the consumer closes."""

from __future__ import annotations

import threading

from minimq_proto.v1 import work_queues_pb2
from support.call_relay import CallRelay
from support.kernel_stores import TIMEOUT_S


class HandOutHold(CallRelay):
    """A relay that passes messages that are taken on once their consumer has said that it leaves."""

    def __init__(self, broker: str) -> None:
        self._has_left = threading.Event()
        super().__init__(broker)

    def asked(self, method: str, request: bytes) -> None:
        if method.endswith("/Pop") and work_queues_pb2.PopRequest.FromString(request).leaves:
            self._has_left.set()

    def passed_on(self, method: str, answer: bytes) -> bytes | None:
        if method.endswith("/Pop") and any(
            result.popped.runs for result in work_queues_pb2.PopResponse.FromString(answer).results
        ):
            assert self._has_left.wait(TIMEOUT_S)
        return answer
