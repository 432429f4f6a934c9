"""Reads the replies to one requester."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable

from minimq.connection.client import ClusterClient
from minimq.connection.replica_selector import ReplicaSelector
from minimq.consuming.commits import QueueBounds
from minimq.consuming.member_state import Grant
from minimq.consuming.pulls import Pulls
from minimq.consuming.queue_decisions import FetchOptions
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.requests.reply import Reply, reply_of
from minimq_common.batch.header import tag_hash
from minimq_common.errors import CorruptBatch, InvalidArgument
from minimq_common.model import MessageQueue

log = logging.getLogger(__name__)

_OPTIONS = FetchOptions(max_messages=100_000, max_bytes=16 << 20, offset_reset="earliest")


class ReplyReader:
    """Reads the messages with one tag from a queue, from its end on. On the event loop of the connection."""

    def __init__(
        self,
        client: ClusterClient,
        queue: MessageQueue,
        bounds: QueueBounds,
        tag: str,
        on_reply: Callable[[str, Reply], None],
    ) -> None:
        self.queue = queue
        #: Number of answers of the broker.
        self.frames = 0
        self._client = client
        self._tag = tag
        self._on_reply = on_reply
        self._reader = QueueReader(queue, Grant(0, bounds.end, 0, term=bounds.term), _OPTIONS)
        hashes = [tag_hash(tag)]
        self._pulls = Pulls(self._arrived, ReplicaSelector(client), client, lambda _: hashes)
        self._timer: asyncio.TimerHandle | None = None
        self.tick()

    @property
    def has_failed(self) -> bool:
        """True after an error that no retry helps, such as that the topic was deleted."""
        return self._reader.error is not None

    def tick(self) -> None:
        """Begin the next pull, or move it to another server, if that is due."""
        now = time.monotonic()
        self._pulls.tick(self._reader, now)
        if self._timer is not None:
            self._timer.cancel()
        if (wake_at := self._reader.wake_at) < math.inf:
            self._timer = asyncio.get_running_loop().call_later(max(wake_at - now, 0.0), self.tick)
        if (failure := self._reader.failure) is not None and failure.refresh_route:
            self._client.routes.refresh_soon(self.queue.topic)

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._pulls.close()

    def _arrived(self, reader: QueueReader) -> None:
        self.frames += 1
        while (found := reader.take_batch()) is not None:
            try:
                self._read(found[0])
            except (CorruptBatch, InvalidArgument) as error:
                log.warning("client: dropped replies that cannot be read error=%s", error)
        self.tick()

    def _read(self, stored: EncodedRecords) -> None:
        for message in ReceivedBatch(self.queue, stored).messages(0):
            if message.tag == self._tag:  # a batch may have replies to others
                self._on_reply(*reply_of(message))
