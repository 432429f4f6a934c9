"""Asks brokers that are left out as unreachable whether they take batches again, so that they come back early."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

import grpc

from minimq.transport.broker_link import BrokerLinks
from minimq_common.errors import Closed
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)


class FaultProbe:
    """One thread that asks, all brokers of a round at once. It belongs to one producer.

    Args:
        links: connections to brokers.
        targets: returns the addresses of the brokers to ask, by name; called before each round.
        tell: called with the name of a broker and whether it answered.
        interval_s: seconds between two rounds, and seconds that a broker may take to answer.
    """

    def __init__(
        self,
        links: BrokerLinks,
        targets: Callable[[], Mapping[str, str]],
        tell: Callable[[str, bool], None],
        interval_s: float,
    ) -> None:
        self._links = links
        self._targets = targets
        self._tell = tell
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="minimq-producer-probe", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, after the questions under way; may be called by it. Idempotent."""
        self._stop.set()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            try:
                self._round()
            except Closed:
                return
            except Exception:
                log.exception("producer: a round of questions to brokers that are left out failed")

    def _round(self) -> None:
        questions: dict[str, Any] = {}
        for broker, address in self._targets().items():
            stub = self._links.to(address).stub
            questions[broker] = stub.Probe.future(broker_pb2.ProbeRequest(), timeout=self._interval_s)
        for broker, question in questions.items():
            try:
                question.result()
            except (grpc.RpcError, grpc.FutureCancelledError):
                self._tell(broker, False)
            else:
                self._tell(broker, True)
