"""The queues that a user has assigned to a consumer: read until he assigns others."""

from __future__ import annotations

import asyncio
import itertools
import math
import time
from collections.abc import Callable, Coroutine, Mapping
from functools import partial
from typing import Any

from minimq.connection.client import ClusterClient
from minimq.connection.loop_call import as_coroutine
from minimq.receiving.fetcher import Fetcher
from minimq.receiving.group_errors import DeletedTopics
from minimq.receiving.member_state import Grant
from minimq.receiving.waits import Waits
from minimq.transport.client_log import client_logger
from minimq_common.errors import Closed, MiniMQError
from minimq_common.model import MessageQueue

log = client_logger(__name__)

_TICK_S = 0.2
#: Ticks from one look for topics that were made anew to the next.
_TICKS_OF_LOOKS = 3
#: A broker that does not have a topic for so long that others have is an error, in seconds.
_ABSENT_S = 10.0


class AssignedQueues:
    """Takes the place of a `GroupMember` for a consumer that was assigned queues. It has no thread of its own.

    A topic that is deleted is an error for the user, once; its queues are read on when it is made anew.
    """

    def __init__(
        self,
        client: ClusterClient,
        fetcher: Fetcher,
        start_offset: Callable[[MessageQueue], Coroutine[Any, Any, int]],
        waits: Waits,
    ) -> None:
        self._client = client
        self._waits = waits
        self._routes = client.routes
        self._fetcher = fetcher
        self._start_offset = start_offset
        self._deleted = DeletedTopics(client.routes, "this consumer", fetcher.failed)
        self._ticking: asyncio.Task[None] | None = None  # belongs to the event loop of the connection
        self._closed = False
        self._may_be_anew = False
        #: Since when their brokers say that they are not there; infinite once the user has heard it.
        self._absent_since: dict[MessageQueue, float] = {}

    async def read_exactly(self, offsets: Mapping[MessageQueue, int]) -> None:
        """Read these queues and no others, each from an offset on unless it is read already."""
        await self._waits.result(as_coroutine(self._read_exactly, offsets))

    def close(self) -> None:
        """End."""
        self._closed = True

    def suspect(self, topic: str) -> None:
        """Note that a broker does not have a topic any more."""
        self._deleted.suspect(topic, time.monotonic())

    async def begin_anew(self) -> None:
        """Begin queues whose topics were deleted and made anew, if there may be some. Raises `MiniMQError`."""
        if not self._may_be_anew:
            return
        self._may_be_anew = False
        for queue in self._fetcher.deleted():
            try:
                offset = await self._waits.result(partial(self._start_offset, queue))
            except Closed:
                raise
            except MiniMQError as error:
                if time.monotonic() - self._absent_since.setdefault(queue, time.monotonic()) > _ABSENT_S:
                    self._absent_since[queue] = math.inf  # other brokers have the topic
                    raise error from None
            else:
                self._absent_since.pop(queue, None)
                begin = partial(self._fetcher.start, queue, Grant(0, offset, 0), tell=False)
                await self._waits.result(as_coroutine(begin))

    def _read_exactly(self, offsets: Mapping[MessageQueue, int]) -> None:
        known = set(self._fetcher.queues)
        self._fetcher.stop(known - offsets.keys())
        for queue in sorted(offsets.keys() - known):
            self._fetcher.start(queue, Grant(0, offsets[queue], 0), tell=False)
        if self._ticking is None:
            self._ticking = asyncio.create_task(self._keep_time())

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
                    self._may_be_anew = True
                    self._fetcher.wake()
            except Exception:
                log.exception("consumer: failed, will try again")
