"""A member of a consumer group that says to its broker exactly what a test wants."""

from __future__ import annotations

import queue as queues
from collections.abc import Iterable, Iterator
from typing import Any

from minimq_proto.v1 import broker_pb2
from support.broker_link import BrokerLink
from support.duplex import Duplex

TIMEOUT_S = 30.0


class RawMember:
    """A session that says exactly what a test wants. It sends no heartbeats by itself."""

    def __init__(self, address: str, client_id: str) -> None:
        self.link = BrokerLink(address)
        self.client_id = client_id
        self.events: queues.SimpleQueue[broker_pb2.SessionEvent] = queues.SimpleQueue()
        self.ended: queues.SimpleQueue[object] = queues.SimpleQueue()
        self._session: Duplex[broker_pb2.SessionRequest, broker_pb2.SessionEvent] = Duplex(
            self.link.stub.Session, address, self.events.put, self.ended.put
        )

    def __enter__(self) -> RawMember:
        return self

    def __exit__(self, *_: object) -> None:
        self.die()

    def die(self) -> None:
        """End the connection without a word. Idempotent."""
        self._session.cancel()
        self.link.close()

    def say(self, **action: object) -> None:
        self._session.send(broker_pb2.SessionRequest(client_id=self.client_id, **action))  # type: ignore[arg-type]

    def hear(self, kind: str) -> broker_pb2.SessionEvent:
        """Return the next event of a kind."""
        while True:
            event = self.events.get(timeout=TIMEOUT_S)
            if event.WhichOneof("event") == kind:
                return event

    def hears_before_heartbeat(self) -> list[str]:
        """Send a heartbeat, and return the kinds of all that is told before it is answered."""
        self.say(heartbeat=broker_pb2.Heartbeat())
        kinds: list[str] = []
        while True:
            kind = str(self.events.get(timeout=TIMEOUT_S).WhichOneof("event"))
            if kind == "heartbeat":
                return kinds
            kinds.append(kind)

    # ---- a queue of a topic -------------------------------------------------------------------------

    def join(self, group: str, topic: str, **fields: Any) -> None:
        self.say(join=broker_pb2.JoinGroup(group=group, topics=[topic], **{"allocation": "averagely", **fields}))

    def ask(self, group: str, topic: str, *queue_ids: int, epoch: int = 0) -> None:
        self.say(acquire=broker_pb2.AcquireQueues(group=group, queues=_items(topic, queue_ids, epoch)))

    def give_back(self, group: str, topic: str, *queue_ids: int) -> None:
        self.say(release=broker_pb2.ReleaseQueues(group=group, queues=_items(topic, queue_ids, 0)))

    def saved(self, group: str, topic: str, *queue_ids: int) -> None:
        self.say(saved=broker_pb2.StateSaved(group=group, queues=_items(topic, queue_ids, 0)))

    def leave(self, group: str) -> None:
        self.say(leave=broker_pb2.LeaveGroup(group=group))

    def granted(self) -> broker_pb2.QueueGranted:
        """Return the next grant."""
        return self.hear("granted").granted

    # ---- calls --------------------------------------------------------------------------------------

    def call(self, name: str, request: object) -> Any:
        """Return the answer to a call of the broker, by its name. Raises the error it is rejected with."""
        return self.link.call(getattr(self.link.stub, name), request, TIMEOUT_S)

    def commit(self, group: str, topic: str, queue_id: int, offset: int, epoch: int, *, force: bool = False) -> None:
        """Commit under a lease."""
        item = broker_pb2.QueueOffset(topic=topic, queue_id=queue_id, offset=offset, epoch=epoch)
        request = broker_pb2.CommitOffsetsRequest(group=group, client_id=self.client_id, offsets=[item], force=force)
        self.call("CommitOffsets", request)

    def pull(self, topic: str, queue_id: int, **fields: Any) -> Iterator[broker_pb2.PullFrame]:
        """Yield the frames of a pull, to the last one; the fields are those of PullRequest."""
        bounds = {"max_messages": 1 << 40, "max_bytes": 1 << 40, **fields}
        request = broker_pb2.PullRequest(pull_id=1, topic=topic, queue_id=queue_id, **bounds)
        yield from self.link.stub.Pull(iter([request]), timeout=TIMEOUT_S * 3)

    def lease(self, group: str, epoch: int) -> broker_pb2.Lease:
        return broker_pb2.Lease(group=group, client_id=self.client_id, epoch=epoch)


def _items(topic: str, queue_ids: Iterable[int], epoch: int) -> list[broker_pb2.QueueEpoch]:
    return [broker_pb2.QueueEpoch(topic=topic, queue_id=queue_id, epoch=epoch) for queue_id in queue_ids]
