"""Stands between clients and a broker, and loses what a test wants to be lost of what the broker tells in sessions."""

from __future__ import annotations

from collections.abc import Callable

from minimq_proto.v1 import broker_pb2
from support.call_relay import CallRelay


class SessionFilter(CallRelay):
    """A relay that loses events of sessions.

    Attributes:
        loses: tells of each event whether it is to be lost.
    """

    def __init__(self, broker: str) -> None:
        self.loses: Callable[[broker_pb2.SessionEvent], bool] = lambda _: False
        super().__init__(broker)

    def passed_on(self, method: str, answer: bytes) -> bytes | None:
        lost = method.endswith("/Session") and self.loses(broker_pb2.SessionEvent.FromString(answer))
        return None if lost else answer
