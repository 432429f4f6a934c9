"""The stream from a master to one slave: entries as they were written, always read from the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import grpc.aio

from minimq_broker.backup.copying import FRAME_BYTES
from minimq_broker.calls.streams import FrameStream
from minimq_broker.commit.off_loop import uncancellable
from minimq_broker.commit.store import Store
from minimq_broker.replication.frames import SILENCE_S, heartbeat_s
from minimq_broker.replication.in_sync import InSync
from minimq_common.wire.unsent import UnsentBudget
from minimq_proto.v1 import replication_pb2

Context = grpc.aio.ServicerContext[replication_pb2.ReplicaRequest, replication_pb2.ReplicaFrame]
log = logging.getLogger(__name__)

#: Maximum delay before a slave learns a new confirmed position, if no entries carry it earlier.
_MAX_CONFIRMED_DELAY_S = 0.02
#: The entries of a slave that is further behind are read in a thread: they may have to come from the disk.
_FAR_BEHIND_BYTES = 16 << 20
#: Timeout of the last write when the stream ends.
_DRAIN_S = 0.5
_MICROSECONDS = 1_000_000


class FollowerHello(NamedTuple):
    """The introduction of a slave. `run` and `address` distinguish processes with the same id."""

    replica_id: int
    run: int
    address: str
    log_id: str = ""

    def has_foreign_log(self, log_id: str) -> bool:
        """Return whether the slave has a log with another identity. An empty log has none."""
        return bool(self.log_id and log_id and self.log_id != log_id)


class Feed:
    """Sends the log to one slave. Lives on one event loop."""

    def __init__(
        self,
        store: Store,
        in_sync: InSync,
        slave: FollowerHello,
        position: int,
        moved: Callable[[], None],
        unsent: UnsentBudget,
        lease_s: float = math.inf,
        ask: Callable[[], float | None] = lambda: None,
        confirmed: Callable[[float], None] = lambda number: None,
    ) -> None:
        """`moved` is called when the slave syncs, connects or leaves; `confirmed` with the `ask` number it confirms."""
        self._store = store
        self._moved, self._ask, self._confirmed = moved, ask, confirmed
        self._heartbeat_s = heartbeat_s(lease_s)
        self._asked_at = -math.inf
        self._unsent = unsent
        self._in_sync = in_sync
        self.slave = slave
        self._replica_id = slave.replica_id
        self._position = position
        self._loop = asyncio.get_running_loop()
        self._more = asyncio.Event()
        #: The confirmed position and the end of the log in the latest frame.
        self._told = (-1, -1)
        self._told_at = self._loop.time()
        self._end = asyncio.Event()
        self._has_ended = asyncio.Event()

    @property
    def is_ending(self) -> bool:
        """True if the stream has ended or is about to."""
        return self._end.is_set() or self._has_ended.is_set()

    def wake(self) -> None:
        """Send what is new: the log, or its confirmed position, has grown."""
        self._more.set()

    def end(self) -> None:
        """End the stream soon. Idempotent."""
        self._end.set()

    async def ended(self) -> None:
        """Wait until the slave no longer counts as connected and nothing here reads the store."""
        await self._has_ended.wait()

    async def run(self, requests: AsyncIterator[replication_pb2.ReplicaRequest], context: Context) -> None:
        """Serve until the slave leaves, is silent for too long, or `end` is called."""
        frames = FrameStream(context, self._unsent)
        position = self._position
        # Until the slave has checked that both logs are of the same replica set, its entries do not count.
        is_same_log = self.slave.log_id == self._store.state.log_id
        self._in_sync.attach(self._replica_id, position if is_same_log else 0, self._loop.time())
        has_foreign_log = self.slave.has_foreign_log(self._store.state.log_id)
        level = logging.DEBUG if has_foreign_log else logging.INFO  # a foreign log is logged already
        log.log(level, "replication: slave follows id=%d from=%d", self._replica_id, position)
        tasks = [
            asyncio.create_task(self._receive(requests), name=f"feed-{self._replica_id}-receiver"),
            asyncio.create_task(self._send(frames), name=f"feed-{self._replica_id}-sender"),
            asyncio.create_task(self._end.wait(), name=f"feed-{self._replica_id}-end"),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        except TimeoutError:
            log.warning("replication: slave is silent id=%d seconds=%s", self._replica_id, SILENCE_S)
        finally:
            self._in_sync.detach(self._replica_id, self._loop.time())
            self._moved()
            for task in tasks:
                task.cancel()
            try:
                await uncancellable(asyncio.gather(*tasks, return_exceptions=True))
            finally:
                self._has_ended.set()
            log.log(level, "replication: slave is gone id=%d", self._replica_id)
        with contextlib.suppress(TimeoutError):  # a slave that does not read is cut off
            async with asyncio.timeout(_DRAIN_S):
                await frames.drained()

    async def _receive(self, requests: AsyncIterator[replication_pb2.ReplicaRequest]) -> None:
        incoming = aiter(requests)
        while True:
            async with asyncio.timeout(SILENCE_S):
                request = await anext(incoming, None)
            if request is None:
                return
            self._in_sync.acknowledged(self._replica_id, request.synced, self._loop.time())
            if request.confirms:
                self._confirmed(request.confirms / _MICROSECONDS)
            self._moved()

    async def _send(self, frames: FrameStream) -> None:
        first = replication_pb2.ReplicaFrame(go_on=go_on(self._store, self._position), log_id=self._store.state.log_id)
        await self._write(frames, first)
        while True:
            await self._news()
            await self._write(frames, await self._next_frame(self._position))

    async def _news(self) -> None:
        while self._position == self._store.end:
            self._more.clear()
            is_new = self._told != (self._store.confirmed, self._store.end)
            left = self._told_at + (_MAX_CONFIRMED_DELAY_S if is_new else self._heartbeat_s) - self._loop.time()
            if left <= 0:
                return
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._more.wait()

    async def _next_frame(self, position: int) -> replication_pb2.ReplicaFrame:
        behind = self._store.end - position
        if behind > _FAR_BEHIND_BYTES:
            entries = await uncancellable(asyncio.to_thread(self._store.entries, position, FRAME_BYTES))
        else:
            entries = self._store.entries(position, FRAME_BYTES) if behind else []
        self._position = position + sum(map(len, entries))
        return replication_pb2.ReplicaFrame(position=position, entries=entries)

    async def _write(self, frames: FrameStream, frame: replication_pb2.ReplicaFrame) -> None:
        def latest() -> replication_pb2.ReplicaFrame:
            now = self._loop.time()
            frame.confirmed, frame.end = self._store.confirmed, self._store.end
            self._told, self._told_at = (frame.confirmed, frame.end), now
            if now - self._asked_at >= self._heartbeat_s / 2 and (number := self._ask()) is not None:
                frame.asked_at, self._asked_at = int(number * _MICROSECONDS), now
            self._in_sync.told(self._replica_id, frame.end, now)
            return frame

        await frames.write(latest)


def go_on(store: Store, position: int) -> replication_pb2.GoOn:
    """Return where a slave continues, and the first entry of the last term before it, to verify that the logs agree."""
    start = next((start for start in reversed(store.state.terms) if start.position < position), None)
    if start is None or start.position < store.log.complete_from:
        return replication_pb2.GoOn(position=position)
    [entry] = store.entries(start.position, 1)
    term = replication_pb2.TermStart(term=start.term, position=start.position)
    return replication_pb2.GoOn(position=position, term=term, term_entry=entry)
