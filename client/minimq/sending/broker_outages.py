"""Log records about brokers that do not answer a producer."""

from __future__ import annotations

from minimq.transport.client_log import client_logger
from minimq_common.errors import MiniMQError, TransportError
from minimq_common.outage_log import OutageLog

log = client_logger(__name__)


class BrokerOutages:
    """Logs when a broker stops answering, and when it answers again. Thread-safe."""

    def __init__(self) -> None:
        #: Brokers that do not answer, by name.
        self.by_name: dict[str, OutageLog] = {}

    def failed(self, broker_name: str, address: str, error: MiniMQError) -> None:
        """Record a failed try."""
        if isinstance(error, TransportError):
            outage = self.by_name.setdefault(broker_name, OutageLog(log))
            message = "producer: broker does not answer broker=%s address=%s reason=%s"
            outage.failed(message, broker_name, address, error, cause=error)

    def answered(self, broker_name: str, address: str) -> None:
        """Record an answer of a broker; this is free while all of them answer."""
        if self.by_name and (outage := self.by_name.pop(broker_name, None)) is not None:
            outage.worked("producer: broker answers broker=%s address=%s", broker_name, address)
