"""Stand-ins of a group member: reading assigned queues, or all queues of topics."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any

from minimq.connection.client import ClusterClient
from minimq.receiving.commits import OffsetLookup
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.group_errors import DeletedTopics
from minimq.receiving.local_offsets import LocalOffsets
from minimq.receiving.member_state import Grant
from minimq.receiving.queue_decisions import Commit
from minimq.transport.client_log import client_logger
from minimq_common.errors import Closed, MiniMQError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.outage_log import OutageLog

log = client_logger(__name__)

_TICK_S = 0.2
#: Ticks from one look for topics that were made anew to the next.
_TICKS_OF_LOOKS = 3
#: A broker that does not have a topic for so long that others have is an error, in seconds.
_ABSENT_S = 10.0


class AssignedQueues:
    """Takes the place of a `GroupMember` for a consumer that was assigned queues. Lives on the event loop.

    A topic that is deleted is an error for the user, once; its queues are read on when it is made anew.
    """

    def __init__(
        self,
        client: ClusterClient,
        fetcher: Fetcher,
        start_offset: Callable[[MessageQueue], Coroutine[Any, Any, int]],
    ) -> None:
        self._routes = client.routes
        self._fetcher = fetcher
        self._start_offset = start_offset
        self._deleted = DeletedTopics(client.routes, "this consumer", fetcher.failed)
        self._ticking: asyncio.Task[None] | None = None
        self._closed = False
        self.may_be_anew = False
        #: Since when their brokers say that they are not there; infinite once the user has heard it.
        self._absent_since: dict[MessageQueue, float] = {}

    def read_exactly(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read these queues and no others, each from an offset on unless it is read already."""
        known = set(self._fetcher.queues)
        self._fetcher.stop(known - offsets.keys())
        for queue in sorted(offsets.keys() - known):
            self._fetcher.start(queue, Grant(0, offsets[queue], 0), tell=False)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._keep_time())

    def close(self) -> None:
        """End."""
        self._closed = True

    def suspect(self, topic: str) -> None:
        """Note that a broker does not have a topic any more."""
        self._deleted.suspect(topic, time.monotonic())

    async def begin_anew(self) -> None:
        """Begin queues whose topics were deleted and made anew. Raises `MiniMQError`."""
        self.may_be_anew = False
        for queue in self._fetcher.deleted():
            try:
                offset = await self._start_offset(queue)
            except Closed:
                raise
            except MiniMQError as error:
                if time.monotonic() - self._absent_since.setdefault(queue, time.monotonic()) > _ABSENT_S:
                    self._absent_since[queue] = math.inf  # other brokers have the topic
                    raise error from None
            else:
                self._absent_since.pop(queue, None)
                self._fetcher.start(queue, Grant(0, offset, 0), tell=False)

    async def _keep_time(self) -> None:
        for tick in itertools.count():
            await asyncio.sleep(_TICK_S)
            if self._closed:
                return
            try:
                self._fetcher.tick()
                self._deleted.look(time.monotonic())
                if tick % _TICKS_OF_LOOKS == 0 and any(
                    not self._routes.is_deleted(queue.topic) for queue in self._fetcher.deleted()
                ):
                    self.may_be_anew = True
                    self._fetcher.wake()
            except Exception:
                log.exception("consumer: failed, will try again")


_RETRY_S = 0.5


class BroadcastReader:
    """Takes the place of a `GroupMember`: gives its consumer every queue there is. Lives on the event loop."""

    #: There is no group, and so no other members that subscribe to other topics.
    topics_of_others: frozenset[str] = frozenset()
    was_taken = True

    def __init__(
        self,
        client: ClusterClient,
        topics: Sequence[str],
        offsets: LocalOffsets,
        starts: OffsetLookup,
        fetcher: Fetcher,
        options: ConsumerOptions,
    ) -> None:
        self._routes = client.routes
        self._topics = topics
        self._offsets = offsets
        self._starts = starts
        self._fetcher = fetcher
        self._interval_s = options.rebalance_interval_s
        self._running: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._changed = asyncio.Event()
        self._look_at = 0.0
        #: What is read, and of which topic: one that was made anew has another id.
        self._read: dict[MessageQueue, int] = {}
        #: Queues of topics of which nothing was saved when this consumer began; the start rule holds for them.
        self._new: frozenset[MessageQueue] | None = None
        self._outage = OutageLog(log)

    def start(self) -> None:
        """Begin."""
        self._routes.on_change(lambda route: self._look())
        self._running = asyncio.create_task(self._run())

    def release(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Take note that queues are read no more. Begin again what has returned meanwhile."""
        for queue in epochs:
            self._read.pop(queue, None)
        self._look()

    def state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Nobody waits for it."""

    def lease_over(self, queue: MessageQueue, epoch: int, error: MiniMQError) -> None:
        """Let the user hear that a topic was deleted: there are no leases."""
        self._fetcher.failed(error)

    async def leave(self) -> None:
        """End. Idempotent."""
        self._is_leaving = True
        self._changed.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    def _look(self) -> None:
        self._look_at = 0.0
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_leaving:
            self._changed.clear()
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + self._interval_s
                try:
                    await self._compare()
                    self._outage.worked("broadcasting: goes on")
                except MiniMQError as error:
                    self._outage.failed("broadcasting: will try again reason=%s", error, cause=error)
                    self._look_at = min(self._look_at, now + _RETRY_S)
            self._fetcher.tick()
            timer = loop.call_later(_TICK_S, self._changed.set)
            await self._changed.wait()
            timer.cancel()

    async def _compare(self) -> None:
        there = {queue for topic in self._topics for queue in await self._queues_of(topic)}
        read = dict(self._read)
        gone = sorted((read.keys() - there) | await self._made_anew(read))
        if gone:
            self._fetcher.revoked(gone)
        if self._new is None:
            self._new = frozenset(queue for queue in there if not self._offsets.knows(queue.topic))
        begun: list[Commit] = []
        failure: MiniMQError | None = None
        for queue in sorted(there - read.keys()):
            try:
                begun.append(await self._first(queue))
            except MiniMQError as error:  # the other brokers shall not wait for this one
                failure = error
        # The rule holds once: from now on "latest" is what it was today.
        for unsaved in (await self._offsets.save(begun)).values() if begun else ():
            raise unsaved
        for first in begun:
            self._read[first.queue] = first.topic_id
            self._fetcher.granted(first.queue, Grant(0, first.offset, first.topic_id, term=first.term))
        if failure is not None:
            raise failure

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        try:
            return (await self._routes.find(topic)).read_queues()
        except TopicNotFound:  # it was deleted, and may be made anew
            return []

    async def _made_anew(self, read: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        now: dict[tuple[str, str], int] = {}
        for queue in read:
            place = queue.topic, queue.broker_name
            if place not in now:
                try:
                    now[place] = (await self._starts.bounds(queue)).topic_id.number
                except MiniMQError as error:
                    log.info("broadcasting: not known whether a topic was made anew queue=%s reason=%s", queue, error)
                    now[place] = read[queue]
        return {queue for queue, topic_id in read.items() if now[queue.topic, queue.broker_name] != topic_id}

    async def _first(self, queue: MessageQueue) -> Commit:
        bounds = await self._starts.bounds(queue)
        topic_id = bounds.topic_id.number
        saved = self._offsets.get(queue, topic_id)
        is_new = self._new is None or queue in self._new or self._offsets.knows_former(queue, topic_id)
        if saved is not None:  # if it is not stored any more, `on_offset_reset` says so
            return Commit(queue, saved.offset, topic_id=topic_id, term=saved.term)
        # A queue that came after the others is read from its beginning.
        offset = await self._starts.by_rule(queue, bounds) if is_new else bounds.first
        return Commit(queue, offset, topic_id=topic_id, term=bounds.term)
