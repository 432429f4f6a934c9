"""Watches the committed offsets of a group during a run: they must never go back."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from types import TracebackType
from typing import Self

from minimq import Admin, MessageQueue, MinimqError
from minimq.connection.client import ClusterClient
from minimq_proto.v1 import broker_pb2

_LOOK_AGAIN_S = 0.02
_ANSWER_S = 5.0


class OffsetWatch:
    """Polls the masters during the block."""

    def __init__(self, nameserver: str, group: str, topic: str) -> None:
        self.looks = 0
        self.went_back = 0
        self.examples: list[str] = []
        self._asked = nameserver, group, topic
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="offset-watch", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        nameserver, group, topic = self._asked
        seen: dict[MessageQueue, int] = {}
        with Admin(nameserver) as admin, closing(ClusterClient(nameserver, _ANSWER_S)) as client:
            while not self._end.wait(_LOOK_AGAIN_S):
                try:
                    found = dict(_committed(admin, client, group, topic))
                except MinimqError:
                    continue  # a broker is being restarted
                self.looks += 1
                for queue, offset in found.items():
                    if offset < seen.get(queue, 0):
                        self.went_back += 1
                        went = f"{queue.broker_name}/{queue.queue_id} was committed up to {seen[queue]}, then {offset}"
                        self.examples = [*self.examples, went][:8]
                seen.update(found)


def _committed(admin: Admin, client: ClusterClient, group: str, topic: str) -> Iterator[tuple[MessageQueue, int]]:
    """Yield the masters' offsets. Without a master, `Admin.committed_offsets` asks a slave, which may lag."""
    route = admin.route(topic)
    request = broker_pb2.GetCommittedRequest(group=group, topic=topic)
    for name in {queue.broker_name for queue in route.read_queues()}:
        if address := route.master_of(name):
            calls, limit_s = client.connection.brokers, client.timeout_s
            answer = client.wait(partial(calls.call, address, lambda stub: stub.GetCommitted, request, limit_s))
            for item in answer.offsets if answer.confirmed else ():  # routes may still name a former master
                yield MessageQueue(topic, name, item.queue_id), item.offset
