"""Broadcasting: each consumer reads all queues, and keeps its offsets in a local file."""

from __future__ import annotations

import asyncio
import fcntl
import logging
import os
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from urllib.parse import quote

import msgspec

from minimq.connection.retry_schedule import PAUSE_S
from minimq.consuming.consumer import Consumer
from minimq.consuming.member_state import Grant
from minimq.consuming.queue_decisions import Commit
from minimq_common.errors import DataDirectoryInUse, MinimqError, StoreError, TopicNotFound
from minimq_common.model import MessageQueue
from minimq_common.retry_log import RetryLog
from minimq_common.text_units import expanded
from minimq_proto.v1 import broker_pb2

log = logging.getLogger(__name__)

_TICK_S = 0.2
#: Seconds between checks of all routes, in case a notification was lost.
CHECK_INTERVAL_S = 20.0


class SavedOffset(msgspec.Struct):
    """A saved offset of a queue, and the topic and log that it belongs to."""

    topic: str
    broker: str
    queue: int
    offset: int
    #: 0 if unknown.
    topic_id: int
    #: Latest term of the log that was read; 0 if unknown.
    term: int


class LocalOffsets:
    """Stores offsets in one file per group and client id: DIRECTORY/GROUP/CLIENT_ID.json. Thread-safe.

    Each offset has the id of its topic, so that it does not apply to a topic recreated under the same name, and the
    term of its log, so that a broker can detect that the log was cut. The file is written anew, synced and renamed, so
    that after a crash it is either the old or the new one. A lock file keeps other consumers away.
    """

    def __init__(self, directory: str | os.PathLike[str], group: str, client_id: str) -> None:
        folder = expanded(directory) / group
        self.path = folder / f"{quote(client_id, safe='')}.json"
        self._lock = threading.Lock()  # held during a write; `_saved` is replaced as a whole
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = self.path.with_suffix(".lock").open("wb")
        except OSError as error:
            raise StoreError(
                f"offsets cannot be kept in {self.path}: {error.strerror}: give a writable folder as broadcast_dir"
            ) from None
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._guard.close()
            raise DataDirectoryInUse(
                f"the offsets in {self.path} are in use by another consumer: give each its own client_id"
            ) from None
        try:
            self._saved = self._read()
        except BaseException:
            self._guard.close()
            raise

    def get(self, queue: MessageQueue, topic_id: int) -> SavedOffset | None:
        """Return the saved offset of a queue if it belongs to this topic, or its topic id is unknown."""
        saved = self._saved.get(queue)
        return saved if saved and (not saved.topic_id or saved.topic_id == topic_id) else None

    def knows(self, topic: str) -> bool:
        return any(queue.topic == topic for queue in self._saved)

    def knows_former(self, queue: MessageQueue, topic_id: int) -> bool:
        """Return whether all offsets saved for this topic and broker belong to an earlier topic of the same name."""
        ids = {
            saved.topic_id
            for other, saved in self._saved.items()
            if (other.topic, other.broker_name) == (queue.topic, queue.broker_name)
        }
        return bool(ids) and not ids & {0, topic_id}

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MinimqError]:
        """Write offsets on a thread; see `OffsetStore.save`."""
        return await asyncio.to_thread(self._save, commits) if commits else {}

    def _save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MinimqError]:
        with self._lock:
            saved = self._saved | {
                each.queue: SavedOffset(
                    each.queue.topic, each.queue.broker_name, each.queue.queue_id, each.offset, each.topic_id, each.term
                )
                for each in commits
            }
            try:
                self._write(saved)
            except OSError as error:
                failure = StoreError(f"offsets were not saved in {self.path}: {error}")
                return dict.fromkeys((commit.queue for commit in commits), failure)
            self._saved = saved
        return {}

    def close(self) -> None:
        """Release the lock file. Idempotent."""
        self._guard.close()

    def _read(self) -> dict[MessageQueue, SavedOffset]:
        try:
            items = msgspec.json.decode(self.path.read_bytes(), type=list[SavedOffset])
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is not a valid file of offsets ({error!r}): restore it from a copy. Without it, the "
                "consumer begins at its `start`: with 'earliest' it reads all messages again, with 'latest' it skips "
                "those sent since it last ran"
            ) from None
        return {MessageQueue(item.topic, item.broker, item.queue): item for item in items}

    def _write(self, offsets: Mapping[MessageQueue, SavedOffset]) -> None:
        items = [offsets[queue] for queue in sorted(offsets)]
        content = msgspec.json.encode(items)
        fresh = self.path.with_suffix(".new")
        with fresh.open("wb") as file:
            file.write(msgspec.json.format(content))
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # makes the rename durable
        finally:
            os.close(folder)


class BroadcastReader:
    """Replaces `GroupMember`: gives its consumer all queues. Lives on the event loop."""

    def __init__(self, consumer: Consumer) -> None:
        self._routes = consumer.client.routes
        self._topics = sorted(consumer.filters)
        folder = consumer.options.broadcast_dir
        assert folder is not None  # that makes a consumer broadcast
        self._offsets = LocalOffsets(folder, consumer.group, consumer.client_id)
        self._starts = consumer.starts
        self._fetcher = consumer.fetcher
        self._fetcher.commits.store = self._offsets
        self._running: asyncio.Task[None] | None = None
        self._is_leaving = False
        self._changed = asyncio.Event()
        self._look_at = 0.0
        #: The queues that are read, each with its topic id: a recreated topic has another one.
        self._read: dict[MessageQueue, int] = {}
        #: Queues of topics without saved offsets when this consumer began; they begin at `start`.
        self._new: frozenset[MessageQueue] | None = None
        #: Set once all queues are read that there were at the start.
        self._begun = asyncio.Event()
        self._outage = RetryLog(log)

    def start(self) -> None:
        self._routes.on_change(lambda route: self._look())
        self._running = asyncio.create_task(self._run())

    @property
    def was_taken(self) -> bool:
        """True once all queues are read that there were at the start. On any thread."""
        return self._begun.is_set()

    async def wait_begun(self, timeout_s: float) -> None:
        """With `start="latest"`, wait until all queues are read that there were at the start."""
        if self._starts.start.at != broker_pb2.START_AT_LATEST:
            return
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._begun.wait()

    def release(self, epochs: Mapping[MessageQueue, int]) -> None:
        """Record that queues are no longer read; those that exist again are restarted."""
        for queue in epochs:
            self._read.pop(queue, None)
        self._look()

    def mark_state_saved(self, queues: Iterable[MessageQueue]) -> None:
        """Do nothing: no other member waits for it."""

    def lease_over(self, queue: MessageQueue, epoch: int, error: MinimqError) -> None:
        """Report to the user that a topic was deleted; there are no leases."""
        self._fetcher.failed(error)

    async def leave(self) -> None:
        self._is_leaving = True
        self._changed.set()
        if self._running is not None:
            await asyncio.wait([self._running])

    def close(self) -> None:
        """Let other consumers use the file of offsets."""
        self._offsets.close()

    def _look(self) -> None:
        self._look_at = 0.0
        self._changed.set()

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while not self._is_leaving:
            self._changed.clear()
            now = time.monotonic()
            if now >= self._look_at:
                self._look_at = now + CHECK_INTERVAL_S
                try:
                    await self._compare()
                    self._outage.worked("broadcasting: goes on")
                except MinimqError as error:
                    self._outage.failed("broadcasting: will try again reason=%s", error, cause=error)
                    self._look_at = min(self._look_at, now + max(PAUSE_S, error.retry_after_s))
                except Exception as error:  # noqa: BLE001 - the task serves all queues: one failure must not end it
                    self._outage.crashed("broadcasting: failed, will try again reason=%r", error, cause=error)
                    self._look_at = min(self._look_at, now + PAUSE_S)
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
        self._fetcher.expect(len(there))
        begun: list[Commit] = []
        failure: MinimqError | None = None
        for queue in sorted(there - read.keys()):
            try:
                begun.append(await self._first(queue))
            except MinimqError as error:  # must not delay the queues of other brokers
                failure = error
        # `start` applies only once: save its result, so that "latest" is not evaluated again later.
        for unsaved in (await self._offsets.save(begun)).values() if begun else ():
            raise unsaved
        for first in begun:
            self._read[first.queue] = first.topic_id
            self._fetcher.granted(first.queue, Grant(0, first.offset, first.topic_id, term=first.term))
        if failure is not None:
            raise failure
        self._begun.set()

    async def _queues_of(self, topic: str) -> list[MessageQueue]:
        try:
            return (await self._routes.find(topic)).read_queues()
        except TopicNotFound:  # deleted, and may be recreated
            return []

    async def _made_anew(self, read: Mapping[MessageQueue, int]) -> set[MessageQueue]:
        now: dict[tuple[str, str], int] = {}
        for queue in read:
            place = queue.topic, queue.broker_name
            if place not in now:
                try:
                    now[place] = (await self._starts.bounds(queue)).topic_id.number
                except MinimqError as error:
                    log.info("broadcasting: cannot check for a recreated topic queue=%s reason=%s", queue, error)
                    now[place] = read[queue]
        return {queue for queue, topic_id in read.items() if now[queue.topic, queue.broker_name] != topic_id}

    async def _first(self, queue: MessageQueue) -> Commit:
        bounds = await self._starts.bounds(queue)
        topic_id = bounds.topic_id.number
        saved = self._offsets.get(queue, topic_id)
        is_new = self._new is None or queue in self._new or self._offsets.knows_former(queue, topic_id)
        if saved is not None:  # if its message was deleted, `on_offset_reset` reports that
            return Commit(queue, saved.offset, topic_id=topic_id, term=saved.term)
        # Queues added to a known topic are read from their first message.
        offset = await self._starts.at(queue, bounds=bounds) if is_new else bounds.first
        return Commit(queue, offset, topic_id=topic_id, term=bounds.term)
