"""Probes brokers that are avoided as unreachable, so that they are used again early."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

import grpc.aio

from minimq.connection.connection import Connection
from minimq.transport.client_log import client_logger
from minimq_proto.v1 import broker_pb2

log = client_logger(__name__)


class FaultProbe:
    """A task on the event loop of a connection that probes all brokers of a round in parallel.

    It belongs to one producer.
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
        """Start probing; called on the event loop, as `end`."""
        if self._asking is None:
            self._asking = asyncio.create_task(self._run())

    def end(self) -> None:
        """Stop probing."""
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
            log.exception("producer: avoided brokers cannot be probed")
        finally:
            self._asking = None

    async def _answers(self, address: str) -> bool:
        question = self._connection.broker_stub(address).Probe
        try:
            await question(broker_pb2.ProbeRequest(), timeout=self._interval_s)
        except grpc.aio.AioRpcError:
            return False
        return True
