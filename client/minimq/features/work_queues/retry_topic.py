"""The retry topic of a group, which consumers read in addition to their topics once it exists."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

from minimq.connection.client import ClusterClient
from minimq.connection.retry_schedule import PAUSE_S
from minimq.features.work_queues.copies import original_of
from minimq.features.work_queues.settler import Settlement
from minimq.features.work_queues.work_queue_message import WorkQueueMessage
from minimq_common.model import TopicRoute
from minimq_common.names import retry_topic
from minimq_common.wire.protocol_bounds import MAX_INVISIBLE_MS
from minimq_proto.v1 import broker_pb2

#: For a retry of a topic that another consumer of the group subscribes to. The delivery does not count.
_PASSED_ON = Settlement(broker_pb2.POP_OUTCOME_RETURN, 1000)
#: Minimum time for which the known brokers of the topic are asked before its route is looked up again.
_MIN_TURN_S = 0.5


class RetryTopic:
    """Finds the retry topic of a group, and sorts its messages. Lives on the event loop of the connection."""

    def __init__(self, client: ClusterClient, group: str, retried_topics: Callable[[], Collection[str]]) -> None:
        self.name = retry_topic(group)
        self._routes = client.routes
        #: Returns the topics whose retries this consumer delivers.
        self._retried_topics = retried_topics
        self._has_changed = asyncio.Event()
        self._changed_at = 0.0

    def watch(self) -> None:
        """Watch the route of the topic, which need not exist."""
        self._routes.on_change(self._route_changed)
        self._routes.watch(self.name)

    def _route_changed(self, route: TopicRoute) -> None:
        if route.topic == self.name:
            self._has_changed.set()
            self._changed_at = asyncio.get_running_loop().time()

    def turn_end(self, until: float) -> float:
        """Return until when to wait for messages: brokers create the topic one by one, and a new route lacks some."""
        now = asyncio.get_running_loop().time()
        return min(until, now + max(now - self._changed_at, _MIN_TURN_S))

    async def wait(self, until: float) -> None:
        """Wait until the topic may exist."""
        self._has_changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout_at(until):
                await self._has_changed.wait()

    async def not_found(self) -> None:
        """Forget the topic if it was deleted with its group; it may be created again."""
        self._routes.refresh_soon(self.name)
        await asyncio.sleep(PAUSE_S)
        if self._routes.is_deleted(self.name):
            self._routes.forget(self.name)
            self._routes.watch(self.name)

    def sort(
        self, messages: Sequence[WorkQueueMessage]
    ) -> tuple[list[WorkQueueMessage], dict[Settlement, list[WorkQueueMessage]]]:
        """Return the messages to deliver now, and those that wait or belong to other consumers. On any thread."""
        topics, due = self._retried_topics(), list[WorkQueueMessage]()
        later: dict[Settlement, list[WorkQueueMessage]] = {}
        for message in messages:
            original = original_of(message)
            if original.topic not in topics:
                later.setdefault(_PASSED_ON, []).append(message)
            elif message.delivery_count == 1 and original.delay_ms:
                wait_ms = min(original.delay_ms, MAX_INVISIBLE_MS)
                later.setdefault(Settlement(broker_pb2.POP_OUTCOME_FREE, wait_ms), []).append(message)
            else:
                due.append(original)
        return due, later
