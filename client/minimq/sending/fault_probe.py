"""Asks brokers that are left out as unreachable whether they take batches again, so that they come back early."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping

import grpc.aio

from minimq.connection.connection import Connection
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)


class FaultProbe:
    """A task on the event loop of a connection that asks, all brokers of a round at once. It belongs to one producer.

    Args:
        connection: reaches the brokers.
        targets: returns the addresses of the brokers to ask, by name; called before each round. None ends the task.
        tell: called on the event loop with the name of a broker and whether it answered.
        interval_s: seconds between two rounds, and seconds that a broker may take to answer.
    """

    def __init__(
        self,
        connection: Connection,
        targets: Callable[[], Mapping[str, str] | None],
        tell: Callable[[str, bool], None],
        interval_s: float,
    ) -> None:
        self._connection = connection
        self._targets = targets
        self._tell = tell
        self._interval_s = interval_s
        self._asking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """See to it that brokers are asked; called on the event loop, as `end`."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._run())

    def end(self) -> None:
        """Ask no more."""
        if self._asking is not None:
            self._asking.cancel()

    async def _run(self) -> None:
        try:
            while True:
                await asyncio.sleep(self._interval_s)
                targets = self._targets()
                if targets is None:
                    return
                answers = await asyncio.gather(*map(self._answers, targets.values()))
                for broker, reached in zip(targets, answers, strict=True):
                    self._tell(broker, reached)
        except Exception:
            log.exception("producer: brokers that are left out cannot be asked")
        finally:
            self._asking = None

    async def _answers(self, address: str) -> bool:
        question = self._connection.broker_stub(address).Probe
        try:
            await question(broker_pb2.ProbeRequest(), timeout=self._interval_s)
        except grpc.aio.AioRpcError:
            return False
        return True
