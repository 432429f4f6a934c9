"""The offsets of a consumer that reads all queues by itself: a file on its own machine."""

from __future__ import annotations

import fcntl
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from minimq.receiving.offset_stores import Commit
from minimq_common.errors import DataDirectoryInUse, MiniMQError, StoreError
from minimq_common.model import MessageQueue

_VERSION = 1


class LocalOffsets:
    """One file for each group and client id: DIRECTORY/GROUP/CLIENT_ID.json. Thread-safe.

    The file is replaced as a whole, and synced, so that it is the old or the new one whatever happens. One consumer at
    a time has it.

    Args:
        directory: where the files of all groups are; made when it is not there. "~" is the user's home.
        group: the group.
        client_id: of the consumer.

    Raises:
        DataDirectoryInUse: another consumer has the file.
        StoreError: the file cannot be read or is none of this kind.
    """

    def __init__(self, directory: str | os.PathLike[str], group: str, client_id: str) -> None:
        folder = Path(directory).expanduser() / group
        self.path = folder / f"{quote(client_id, safe='')}.json"
        self._group = group
        self._client_id = client_id
        self._lock = threading.Lock()
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._guard = self.path.with_suffix(".lock").open("wb")
        except OSError as error:
            raise StoreError(f"offsets cannot be kept in {self.path}: {error}") from None
        try:
            fcntl.flock(self._guard, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._guard.close()
            raise DataDirectoryInUse(
                f"the offsets in {self.path} are in use by another consumer: give each its own client_id"
            ) from None
        try:
            self._offsets = self._read()
        except BaseException:
            self._guard.close()
            raise

    def get(self, queue: MessageQueue) -> int | None:
        """Return the offset that was saved last."""
        with self._lock:
            return self._offsets.get(queue)

    def knows(self, topic: str) -> bool:
        """Tell whether an offset of any queue of a topic was saved."""
        with self._lock:
            return any(queue.topic == topic for queue in self._offsets)

    def save(self, commits: Sequence[Commit]) -> Mapping[MessageQueue, MiniMQError]:
        """Record offsets; see `OffsetStore.save`."""
        with self._lock:
            offsets = self._offsets | {commit.queue: commit.offset for commit in commits}
            if offsets == self._offsets:
                return {}
            try:
                self._write(offsets)
            except OSError as error:
                failure = StoreError(f"offsets were not saved in {self.path}: {error}")
                return dict.fromkeys((commit.queue for commit in commits), failure)
            self._offsets = offsets
        return {}

    def close(self) -> None:
        """Let others have the file. Idempotent."""
        self._guard.close()

    def _read(self) -> dict[MessageQueue, int]:
        try:
            found: Any = json.loads(self.path.read_text())
            if found["version"] != _VERSION:
                raise StoreError(f"{self.path} has version {found['version']}, this minimq writes {_VERSION}")
            return {
                MessageQueue(str(item["topic"]), str(item["broker"]), int(item["queue"])): int(item["offset"])
                for item in found["offsets"]
            }
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise StoreError(
                f"{self.path} is no file of offsets ({error!r}): remove it, then the consumer begins at its start"
            ) from None

    def _write(self, offsets: Mapping[MessageQueue, int]) -> None:
        content = {
            "version": _VERSION,
            "group": self._group,
            "client_id": self._client_id,
            "offsets": [
                {"topic": queue.topic, "broker": queue.broker_name, "queue": queue.queue_id, "offset": offset}
                for queue, offset in sorted(offsets.items())
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
