"""A member of a consumer group that says to its broker exactly what a test wants."""

from __future__ import annotations

import queue as queues

from minimq.transport.broker_link import BrokerLinks
from minimq.transport.duplex import Duplex
from minimq_proto.v1 import broker_pb2

PATIENCE_S = 10.0


class RawMember:
    """A session that says exactly what a test wants."""

    def __init__(self, address: str, client_id: str) -> None:
        self._links = BrokerLinks()
        self.link = self._links.to(address)
        self.client_id = client_id
        self.events: queues.SimpleQueue[broker_pb2.SessionEvent] = queues.SimpleQueue()
        self._session: Duplex[broker_pb2.SessionRequest, broker_pb2.SessionEvent] = Duplex(
            self.link.stub.Session, address, self.events.put, lambda _: None
        )

    def __enter__(self) -> RawMember:
        return self

    def __exit__(self, *_: object) -> None:
        self._session.cancel()
        self._links.close()

    def say(self, **action: object) -> None:
        self._session.send(broker_pb2.SessionRequest(client_id=self.client_id, **action))  # type: ignore[arg-type]

    def hear(self, kind: str) -> broker_pb2.SessionEvent:
        """Return the next event of a kind."""
        while True:
            event = self.events.get(timeout=PATIENCE_S)
            if event.WhichOneof("event") == kind:
                return event
