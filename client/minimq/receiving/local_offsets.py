"""The offsets of a consumer that reads all queues by itself: a file on its own machine."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import threading
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from minimq.receiving.queue_decisions import Commit
from minimq_common.errors import DataDirectoryInUse, MiniMQError, StoreError
from minimq_common.model import MessageQueue
from minimq_common.words import expanded

_VERSION = 1


class SavedOffset(NamedTuple):
    """An offset, as it was saved."""

    offset: int
    #: Of the topic that was read; 0 when it is not known.
    topic_id: int = 0
    #: The latest one in the log that was read; 0 when it is not known.
    term: int = 0


class LocalOffsets:
    """One file for each group and client id: DIRECTORY/GROUP/CLIENT_ID.json. Thread-safe.

    Offsets are saved with the id of their topic, so that they do not count in one that was made anew under its name,
    and with the term of the log, so that brokers can tell what a later master has taken back.
    The file is replaced as a whole, and synced, so that it is the old or the new one whatever happens. One consumer at
    a time has it.
    """

    def __init__(self, directory: str | os.PathLike[str], group: str, client_id: str) -> None:
        folder = expanded(directory) / group
        self.path = folder / f"{quote(client_id, safe='')}.json"
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = self.path.with_suffix(".lock").open("wb")
        except OSError as error:
            raise StoreError(
                f"offsets cannot be kept in {self.path}: {error.strerror}: give a writable folder as offsets_dir"
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
        """Return what was saved last in a topic; whatever was saved when no id is known."""
        with self._lock:
            saved = self._saved.get(queue)
        return saved if saved and (not saved.topic_id or saved.topic_id == topic_id) else None

    def knows(self, topic: str) -> bool:
        """Tell whether an offset of any queue of a topic of that name was saved."""
        with self._lock:
            return any(queue.topic == topic for queue in self._saved)

    def knows_former(self, queue: MessageQueue, topic_id: int) -> bool:
        """Tell whether all that was saved of a topic at the broker of a queue is of an earlier one of that name."""
        with self._lock:
            ids = {
                saved.topic_id
                for other, saved in self._saved.items()
                if (other.topic, other.broker_name) == (queue.topic, queue.broker_name)
            }
        return bool(ids) and not ids & {0, topic_id}

    async def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets, on another thread than that of the event loop; see `OffsetStore.save`."""
        return await asyncio.to_thread(self.write, commits)

    def write(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets, and wait until they are on disk."""
        if not commits:
            return {}
        with self._lock:
            saved = self._saved | {
                commit.queue: SavedOffset(commit.offset, commit.topic_id, commit.term) for commit in commits
            }
            try:
                self._write(saved)
            except OSError as error:
                failure = StoreError(f"offsets were not saved in {self.path}: {error}")
                return dict.fromkeys((commit.queue for commit in commits), failure)
            self._saved = saved
        return {}

    def close(self) -> None:
        """Let others have the file. Idempotent."""
        self._guard.close()

    def _read(self) -> dict[MessageQueue, SavedOffset]:
        try:
            found: Any = json.loads(self.path.read_text())
            if found["version"] != _VERSION:
                raise StoreError(
                    f"{self.path} has version {found['version']}, this minimq writes {_VERSION}: read on with the "
                    "release that wrote it"
                )
            return {
                MessageQueue(str(item["topic"]), str(item["broker"]), int(item["queue"])): SavedOffset(
                    int(item["offset"]), int(item["topic_id"]), int(item["term"])
                )
                for item in found["offsets"]
            }
        except FileNotFoundError:
            return {}
        except (ArithmeticError, AttributeError, OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            raise StoreError(
                f"{self.path} is no file of offsets ({error!r}): put a copy of it back. Without the file the consumer "
                "begins where `start` says: with 'earliest' it reads again what it has read, with 'latest' it passes "
                "over what was sent since"
            ) from None

    def _write(self, offsets: Mapping[MessageQueue, SavedOffset]) -> None:
        content = {
            "version": _VERSION,
            "group": self._group,
            "client_id": self._client_id,
            "offsets": [
                {
                    "topic": queue.topic,
                    "broker": queue.broker_name,
                    "queue": queue.queue_id,
                    "offset": saved.offset,
                    "topic_id": saved.topic_id,
                    "term": saved.term,
                }
                for queue, saved in sorted(offsets.items())
            ],
        }
        fresh = self.path.with_suffix(".new")
        with fresh.open("w") as file:
            json.dump(content, file, indent=1)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(self.path)
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)  # the new name as well
        finally:
            os.close(folder)
