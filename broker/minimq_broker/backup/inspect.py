"""Lists the content of a data directory, as text or JSON."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb
import msgspec

from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import NEVER, RunState
from minimq_broker.log.checkpoint import Checkpoint
from minimq_broker.log.commit_log import CommitLog
from minimq_broker.log.data_dir import DataDirectory
from minimq_broker.log.entry import (
    IN_QUEUE,
    EntryHeader,
    EntryKind,
    delay_of,
    held_key_of,
    payload_of,
    read_fact,
    read_header,
    transaction_of,
)
from minimq_broker.log.recovery import recover
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch import header as batch
from minimq_common.errors import StoreError
from minimq_common.model import Permission
from minimq_common.timestamps import moment


def inspect_directory(path: Path, *, entries: bool) -> Iterator[str]:
    """Yield lines about a data directory that is not in use: the names and values of `inspect_as_json`."""
    with _opened(path) as (log, state):
        yield from _lines(_about(log, state))
        for entry in _entries(log) if entries else ():
            yield from _lines({"entry": entry})


def inspect_as_json(path: Path, *, entries: bool) -> dict[str, Any]:
    """Return the same as JSON values. Raises like `inspect_directory`."""
    with _opened(path) as (log, state):
        about = _about(log, state)
        return {**about, "entries": list(_entries(log))} if entries else about


@contextmanager
def _opened(path: Path) -> Iterator[tuple[CommitLog, State]]:
    directory = DataDirectory(path, create=False)
    try:
        directory.check_whole()
        with (
            closing(CommitLog(directory.log_path, 0, readonly=True)) as log,
            closing(Checkpoint(directory.state_path, readonly=True)) as checkpoint,
        ):
            yield log, recover(checkpoint, log)
    except (lmdb.Error, struct.error) as error:
        raise StoreError(f"{path} cannot be read: {error}: run minimq-broker check {path}") from None
    finally:
        directory.close()


def _about(log: CommitLog, state: State) -> dict[str, Any]:
    topics = sorted(state.topics.values(), key=lambda topic: topic.name)
    names = {topic.topic_id: topic.name for topic in topics}
    return {
        "log": {
            "start": log.start,
            "end": log.end,
            "disk_bytes": log.disk_bytes,
            "segments": [
                {
                    "file": segment.path.name,
                    "start": segment.start,
                    "used_bytes": segment.used_bytes,
                    "rewritten": bool(segment.rewritten_to),
                }
                for segment in log.segments
            ],
        },
        "term": state.term,
        "transactions": [
            {"transaction": name, "number": number, "unpublished": count}
            for name, number, count in state.transactions.endings()
        ],
        "delayed": {
            "published_to": state.delays.mark._asdict(),
            "waiting": [
                {"topic": names.get(topic_id, topic_id), "batches": waiting.batches, "messages": waiting.messages}
                for topic_id, waiting in sorted(state.delays.by_topic.items())
            ],
        },
        "topics": [
            {
                "topic": topic.name,
                "id": topic.topic_id,
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "permission": (Permission(topic.permission).name or "").lower().replace("_", "-"),
                "fifo": topic.fifo,
                "retention_ms": topic.retention.max_age_ms,
                "retention_bytes": topic.retention.max_bytes,
                "compacted": bool(topic.key_queues),
                "queues": [_queue(QueueKey(topic.topic_id, number), log, state) for number in range(topic.queues)],
            }
            for topic in topics
        ],
        "groups": [
            {"group": group, "topic": names.get(topic_id, topic_id), "queue": queue_id, "offset": offset}
            for (group, topic_id, queue_id), offset in sorted(state.committed.items())
        ],
        "popped": [
            {"group": group, "topic": names.get(topic_id, topic_id), "queue": queue_id, **_popped(queue)}
            for (group, topic_id, queue_id), queue in sorted(state.popped.items())
        ],
    }


def _popped(queue: PopQueue) -> dict[str, Any]:
    statuses = [status for status, _ in queue.statuses(0)]
    due_ms = min((status.until_ms for status in statuses if status.state is RunState.OUT), default=NEVER)
    return {
        "settled_to": queue.done,
        "handed_out_to": queue.next,
        "bitmaps": len(queue),
        "unsettled": queue.unsettled_before(queue.next),
        "in_flight": queue.held,
        "max_delivery_count": max((status.delivery_count for status in statuses), default=0),
        "next_deadline": None if due_ms == NEVER else moment(due_ms).isoformat(timespec="milliseconds"),
    }


def _queue(queue: QueueKey, log: CommitLog, state: State) -> dict[str, int]:
    end = state.end(queue).offset
    first = log.first_offset(queue)
    return {"queue": queue.queue_id, "min_offset": end if first is None else first, "max_offset": end}


def _entries(log: CommitLog) -> Iterator[dict[str, Any]]:
    for position, entry in log.entries():
        header = read_header(entry, position)
        about: dict[str, Any] = {"position": position, "stored_at": _moment(header.stored_ms)}
        payload = payload_of(entry)
        if header.kind == EntryKind.FACT:
            about["fact"] = msgspec.to_builtins(read_fact(payload, position))
        else:
            about["kind"] = header.kind.name.lower()
            about["topic_id"], about["queue"] = header.queue
            about |= _batch(header, batch.read_header(payload))
        if header.kind == EntryKind.STAGED:
            about["transaction"], about["number"] = transaction_of(entry, position)
        elif header.kind == EntryKind.DELAYED:
            due_ms, about["recallable"] = delay_of(entry, position)
            about |= {"due_at": _moment(due_ms), "due_ms": due_ms, "id": position}
        elif header.kind == EntryKind.RELEASED:
            key = held_key_of(entry, position)
            about |= {"due_at": _moment(key.due_ms), **key._asdict()} if key.due_ms else {"staged_at": key.id}
        yield about


def _moment(at_ms: int) -> str:
    try:
        return moment(at_ms).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError):  # a year beyond 9999
        return str(at_ms)


def _batch(header: EntryHeader, sent: batch.Header) -> dict[str, Any]:
    about: dict[str, Any] = {}
    if header.kind in IN_QUEUE:
        about["min_offset"] = header.base_offset
        about["max_offset"] = header.base_offset + sent.count
    else:
        about["messages"] = sent.count
    if sent.producer_id:
        about["producer"], about["sequence"] = f"{sent.producer_id:016x}", sent.sequence
    return about


def _lines(about: dict[str, Any], indent: str = "") -> Iterator[str]:
    for name, found in about.items():
        for item in found if isinstance(found, list) else [found]:
            if not isinstance(item, dict):
                yield f"{indent}{name}: {item}"
                continue
            nested = {key: value for key, value in item.items() if isinstance(value, dict | list)}
            plain = " ".join(f"{key}={value}" for key, value in item.items() if key not in nested)
            yield f"{indent}{name}: {plain}"
            yield from _lines(nested, f"{indent}  ")
