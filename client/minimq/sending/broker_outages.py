"""Brokers that do not answer a producer, in the log."""

from __future__ import annotations

import logging

from minimq_common.errors import MiniMQError, TransportError
from minimq_common.outage_log import OutageLog

log = logging.getLogger(__name__)


class BrokerOutages:
    """Logs when a broker does not answer any more, and when it does again. Thread-safe."""

    def __init__(self) -> None:
        #: By broker name, those that do not answer.
        self._outages: dict[str, OutageLog] = {}

    def failed(self, broker_name: str, address: str, error: MiniMQError) -> None:
        """Note that a try has failed."""
        if isinstance(error, TransportError):
            outage = self._outages.setdefault(broker_name, OutageLog(log))
            message = "producer: broker does not answer broker=%s address=%s reason=%s"
            outage.failed(message, broker_name, address, error, cause=error)

    def answered(self, broker_name: str, address: str) -> None:
        """Note that a broker has answered; costs nothing while all of them do."""
        if self._outages and (outage := self._outages.pop(broker_name, None)) is not None:
            outage.worked("producer: broker answers broker=%s address=%s", broker_name, address)
