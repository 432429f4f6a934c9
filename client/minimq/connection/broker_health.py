"""The brokers that were not reached, until they answer again."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

import grpc
import grpc.aio

from minimq.connection.loop_thread import LoopThread
from minimq_common.errors import MiniMQError
from minimq_common.wire.channels import Channels
from minimq_common.wire.rpc import status_of
from minimq_proto.v1 import broker_pb2

if TYPE_CHECKING:  # at run time it is the plain stub
    from minimq_proto.v1.broker_pb2_grpc import BrokerAsyncStub

#: Timeout in seconds of a probe of an unreachable broker before the next one.
_QUESTION_S = 10.0


class BrokerHealth:
    """Knows which brokers give no answer, for all clients of a connection. Thread-safe.

    Such a broker is probed in the background until it answers, so that nobody waits for it.
    """

    def __init__(self, loop: LoopThread, channels: Channels[BrokerAsyncStub]) -> None:
        self._loop = loop
        self._channels = channels
        #: Since when and why brokers are silent, by address.
        self._silent: dict[str, tuple[float, str]] = {}
        #: Changes with `silence`.
        self.version = 0
        self._questions: dict[str, asyncio.Task[None]] = {}  # of the loop

    def is_silent(self, address: str) -> bool:
        """Return whether a broker gave no answer, and none since."""
        return address in self._silent

    def silence(self, address: str) -> tuple[float, str] | None:
        """Return since when a broker has not answered, on the monotonic clock, and why; None if it answers."""
        return self._silent.get(address)

    def failed(self, address: str, error: MiniMQError | None) -> None:
        """Note that a broker failed, or ended a stream in good order. Returns at once."""
        if error is None or error.answered or address in self._silent:
            return
        self._silent[address] = time.monotonic(), error.message
        self.version += 1
        if not self._loop.call_soon(self._begin, address):
            self._answered(address)

    # ---- on the event loop ----------------------------------------------------------------------

    def _begin(self, address: str) -> None:
        if address not in self._questions:
            self._questions[address] = asyncio.create_task(self._wait_for(address))

    async def _wait_for(self, address: str) -> None:
        try:
            while not await self._answers(address):
                pass
        finally:
            del self._questions[address]
            self._answered(address)

    def _answered(self, address: str) -> None:
        self._silent.pop(address, None)
        self.version += 1

    async def _answers(self, address: str) -> bool:
        probe = self._channels.stub(address).Probe  # which takes no right, and has no answer while the disk hangs
        try:
            await probe(broker_pb2.ProbeRequest(), timeout=_QUESTION_S, wait_for_ready=True)
        except grpc.aio.AioRpcError as failure:
            return status_of(failure)[0] is not grpc.StatusCode.DEADLINE_EXCEEDED
        return True
