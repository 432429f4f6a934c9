"""A readable listing of what a data directory holds."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path

import lmdb

from minimq_broker.core.facts import decode_fact
from minimq_broker.core.state import QueueKey, State
from minimq_broker.store.checkpoint import Checkpoint
from minimq_broker.store.commit_log import CommitLog
from minimq_broker.store.data_dir import DataDirectory
from minimq_broker.store.entry import HEADER_BYTES, Kind, read_header
from minimq_broker.store.message_store import recover
from minimq_common import batch
from minimq_common.errors import StoreError


def inspect_directory(path: Path, *, entries: bool) -> Iterator[str]:
    """Yield lines about a data directory that no broker has open.

    Args:
        path: the directory.
        entries: list each entry of the log as well.

    Raises:
        StoreError: it is no data directory, is in use, or is of another version.
        CorruptEntry: an entry that is needed for the state is damaged.
    """
    directory = DataDirectory(path, create=False)
    try:
        with (
            closing(CommitLog(directory.log_path, 0, readonly=True)) as log,
            closing(Checkpoint(directory.state_path, readonly=True)) as checkpoint,
        ):
            yield from _segments(log)
            yield from _state(recover(checkpoint, log), log)
            if entries:
                yield from _entries(log)
    except (lmdb.Error, struct.error) as error:
        raise StoreError(f"{path} cannot be read: {error}: run minimq-broker check {path}") from None
    finally:
        directory.close()


def _segments(log: CommitLog) -> Iterator[str]:
    yield f"log: positions {log.start} to {log.end}, {len(log.segments)} segments, {log.disk_bytes} bytes on disk"
    for segment in log.segments:
        yield f"  {segment.path.name}: from {segment.start}, {segment.used_bytes} bytes used"


def _state(state: State, log: CommitLog) -> Iterator[str]:
    yield f"term: {state.term}"
    names = {}
    for topic in sorted(state.topics.values(), key=lambda topic: topic.name):
        names[topic.topic_id] = topic.name
        yield (
            f"topic {topic.name}: id {topic.topic_id}, {topic.read_queues} read and {topic.write_queues} write queues, "
            f"permission {topic.permission}"
        )
        for queue_id in range(topic.queues):
            queue = QueueKey(topic.topic_id, queue_id)
            end = state.end(queue).offset
            first = log.first_offset(queue)
            yield f"  queue {queue_id}: offsets {end if first is None else first} to {end}"
    for (group, topic_id, queue_id), offset in sorted(state.committed.items()):
        yield f"group {group}: {names.get(topic_id, topic_id)}/{queue_id} at {offset}"


def _entries(log: CommitLog) -> Iterator[str]:
    for position, entry in log.entries():
        header = read_header(entry, position)
        time = datetime.fromtimestamp(header.stored_ms / 1000, UTC).isoformat(timespec="milliseconds")
        payload = entry[HEADER_BYTES:]
        if header.kind == Kind.FACT:
            yield f"{position} {time} {decode_fact(payload)}"
        else:
            about = batch.read_header(payload)
            last = header.base_offset + about.count - 1
            yield f"{position} {time} batch queue {header.queue} offsets {header.base_offset} to {last}"
