"""Asks brokers that are left out as unreachable whether they take batches again, so that they come back early."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping

from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import MiniMQError
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)


class FaultProbe:
    """One thread that asks. It belongs to one producer.

    Args:
        links: connections to brokers.
        targets: returns the addresses of the brokers to ask, by name; called before each round.
        tell: called with the name of a broker and whether it answered.
        interval_s: seconds between two rounds.
        timeout_s: seconds that a broker may take.
    """

    def __init__(
        self,
        links: BrokerLinks,
        targets: Callable[[], Mapping[str, str]],
        tell: Callable[[str, bool], None],
        *,
        interval_s: float,
        timeout_s: float,
    ) -> None:
        self._links = links
        self._targets = targets
        self._tell = tell
        self._interval_s = interval_s
        self._timeout_s = timeout_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minimq-producer-probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the question under way. Idempotent."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                for broker, address in self._targets().items():
                    if self._stop.is_set():
                        return
                    self._tell(broker, self._answers(address))
            except Exception:
                log.exception("producer: a round of questions to brokers that are left out failed")

    def _answers(self, address: str) -> bool:
        try:
            link = self._links.to(address)
            link.call(link.stub.Probe, broker_pb2.ProbeRequest(), self._timeout_s)
        except (MiniMQError, ValueError):  # the latter when the channel was closed just now
            return False
        return True
