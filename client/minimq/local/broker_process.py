"""One broker as a child process, which may be one of several replicas."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import grpc

from minimq.administration.descriptions import ReplicationReport, replication_from_wire
from minimq.local.server_process import ServerProcess
from minimq_common.security.certificates import Trust
from minimq_common.wire.rpc import open_channel
from minimq_proto.v1 import broker_pb2, broker_pb2_grpc

_ANSWER_S = 1.0


class BrokerProcess(ServerProcess):
    """A broker. Thread-safe."""

    def __init__(
        self,
        name: str,
        directory: Path,
        *,
        broker_name: str,
        broker_id: int,
        flags: Callable[[str, bool], list[str]],
        settled: Callable[[], None],
        trust: Callable[[], Trust | None] = lambda: None,
    ) -> None:
        """Prepare; nothing is started. See `ServerProcess`."""
        self._trust = trust
        super().__init__("broker", name, directory, flags=flags, settled=settled)
        self.broker_name = broker_name
        self.broker_id = broker_id

    def replication(self) -> ReplicationReport | None:
        """Return what it says of itself as one of several replicas; None when it does not answer."""
        if not self.running or self.paused:
            return None
        with open_channel(self.address, self._trust()) as channel:
            try:
                answer = broker_pb2_grpc.BrokerStub(channel).GetStatus(broker_pb2.GetStatusRequest(), timeout=_ANSWER_S)
            except grpc.RpcError:
                return None
        return replication_from_wire(answer.replication)

    @property
    def current_role(self) -> str:
        """The present role: "alone", "master", "slave", "undecided", or "" when it does not answer."""
        report = self.replication()
        return report.role if report is not None else ""

    @property
    def in_sync(self) -> bool:
        """True if it is alone, or knows itself to be one of the replicas in sync."""
        report = self.replication()
        return report is not None and (report.role == "alone" or self.broker_id in report.in_sync)
