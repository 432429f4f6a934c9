"""Decoders of brokers, for their disks and other replicas: entries, facts, and rows of all files."""

from __future__ import annotations

import json
import struct
import tempfile
from enum import Enum
from functools import lru_cache
from pathlib import Path
from random import Random
from types import UnionType
from typing import Any, Final, Union, get_args, get_origin, get_type_hints

import google_crc32c
import msgspec
from msgspec import UNSET, UnsetType

import minimq_broker.assembly  # noqa: F401 - registers the features
from fuzz import mutation
from fuzz.target import Target
from fuzz.targets.batches import fifo_batches, make_batch, valid_batches
from minimq_broker.features.staged.staging import TransactionId, note_of
from minimq_broker.features.work_queues.pop_runs import Run, RunState
from minimq_broker.log import entry as entries
from minimq_broker.log.checkpoint import Checkpoint, position_of, take_changes
from minimq_broker.log.lmdb_file import DAMAGE
from minimq_broker.log.rows import ROW_KEY, check_row, count_in, may_hold, position_in, unpack_row
from minimq_broker.state.facts import Fact, Topic, TopicSet, decode_fact, encode_fact, known_facts
from minimq_broker.state.queue_ends import BatchHeld, HeldKey
from minimq_broker.state.state import QueueKey, State
from minimq_common.batch.header import read_header
from minimq_common.errors import CorruptEntry, InvalidArgument, StoreError
from minimq_common.replicas.replica_set import ReplicaReport, ReplicaSet, check_record

_POSITION: Final = 4096


@lru_cache(maxsize=1)
def _facts() -> list[Fact]:
    """Return two facts of each kind, whatever kinds there are."""
    return [_instance(kind, size) for kind in get_args(known_facts()) for size in (1, 3)]


def _instance(kind: Any, size: int) -> Any:
    """Return a value of a type by its annotations, with lists of some size."""
    if kind in _SIMPLE:
        return _SIMPLE[kind]
    if get_origin(kind) in (Union, UnionType):
        one, other = get_args(kind)
        return _instance(one, size) if size > 1 else UNSET if other is UnsetType else None
    if get_origin(kind) is tuple:
        parts = get_args(kind)
        return tuple(_instance(part, size) for part in (parts if parts[1:] != (...,) else parts[:1] * size))
    if get_origin(kind) is dict:
        return {"t": _instance(get_args(kind)[1], size)}
    if issubclass(kind, Enum):
        return next(iter(kind))
    return kind(**{name: _instance(part, size) for name, part in get_type_hints(kind).items() if name[0] != "_"})


_SIMPLE: Final[dict[Any, Any]] = {
    int: 17,
    str: "t",
    bytes: b"decision",
    bool: True,
    Run: Run(17, 18, RunState.OUT, 1, 17, 17, "t"),  # one that a queue can have
}


@lru_cache(maxsize=1)
def _entries() -> list[bytes]:
    queue = QueueKey(17, 0)
    made = [entries.fact_entry(fact, 5) for fact in _facts()]
    for data in (*valid_batches()[:12], *fifo_batches()[:2]):
        made.append(entries.batch_entry(queue, 100, 5, data))
        made.append(entries.released_entry(2, queue, 100, 5, HeldKey(0, 90), data))
        note = note_of(TransactionId("t", 1), read_header(data), len(data))
        made.append(entries.held_entry(2, queue, 5, 0, note, data, numbered=False))
    return made


def _changed_msgpack(rng: Random, data: bytes) -> bytes:
    """Return packed values with one of them changed, or bytes changed."""
    if rng.random() < 0.4:
        return mutation.blob(rng, data)
    return msgspec.msgpack.encode(_changed(rng, msgspec.msgpack.decode(data)))


def _changed(rng: Random, value: Any) -> Any:
    if rng.random() < 0.15:
        return rng.choice(
            (None, True, -1, 0, (1 << 63) - 1, -(1 << 63), (1 << 64) - 1, 0.5, "", "t", b"x", [], [1], {}, {"a": 1})
        )
    if isinstance(value, dict):
        return {key: _changed(rng, part) for key, part in value.items()}
    if isinstance(value, list):
        return [_changed(rng, part) for part in value] * rng.choice((1, 1, 1, 2))
    return value


def _make_fact(rng: Random) -> bytes:
    return _changed_msgpack(rng, encode_fact(rng.choice(_facts())))


def _make_entry(rng: Random) -> bytes:
    """Return an entry that is changed, mostly under a checksum that is right again."""
    kind = rng.random()
    if kind < 0.3:
        made = rng.choice(_entries())
        return made if kind < 0.02 else mutation.blob(rng, made)
    if kind < 0.5:
        return _sealed(rng.choice(_entries())[4 : entries.HEADER_BYTES] + _make_fact(rng))
    if kind < 0.7:
        return _sealed(mutation.blob(rng, rng.choice(_entries())[4:]))
    queue = QueueKey(mutation.number(rng), rng.choice((0, 1, 1 << 31)))
    data, stored_ms = make_batch(rng), mutation.number(rng)
    if kind < 0.85:
        return entries.batch_entry(queue, mutation.number(rng), stored_ms, data)
    note = b"x" * rng.choice((0, 1, 120, 65_535))
    return entries.held_entry(2, queue, stored_ms, mutation.number(rng), note, data, numbered=rng.random() < 0.5)


def _sealed(rest: bytes) -> bytes:
    """Return an entry of a fact, or of what calls itself one, under its checksum."""
    covered = len(rest)
    if len(rest) > 1 and rest[0] != entries.EntryKind.FACT:
        at = entries.HEADER_BYTES - 4
        if rest[0] == entries.EntryKind.HELD and len(rest) >= at + 12:
            at += 12 + struct.unpack_from("<H", rest, at + 10)[0]
        covered = at + 50
    return int(google_crc32c.value(rest[:covered])).to_bytes(4, "little") + rest


def _open_entry(data: bytes) -> None:
    for read in (entries.opened, lambda part, place: entries.effect(memoryview(part), place), _published):
        try:
            read(data, _POSITION)
        except (CorruptEntry, StoreError):
            continue
    entries.read_header(memoryview(data), _POSITION)


def _published(data: bytes, position: int) -> None:
    """Read a batch that is to be released, by its key, and by that of another batch."""
    effect = entries.opened(data, position).effect
    if isinstance(effect, BatchHeld):
        entries.held_batch(data, effect.tag, effect.key)
    entries.held_batch(data, 2, HeldKey(0, position))


def _apply(data: bytes) -> None:
    """Apply an entry of another replica to a state, and save that."""
    opened = entries.opened(data, _POSITION)
    state = State()
    state.position = _POSITION
    state.apply(opened.effect, _POSITION + len(data), opened.header.stored_ms)
    take_changes(state)


@lru_cache(maxsize=1)
def _state_rows() -> list[tuple[bytes, bytes]]:
    state = State()
    position = 0
    for made in [entries.fact_entry(TopicSet(_instance(Topic, 1)), 5), *reversed(_entries())]:
        opened = entries.opened(made, position)
        state.apply(opened.effect, position + len(made), 5)
        position += len(made)
    changes = take_changes(state)
    return [(key, value) for key, value in changes.rows if value is not None]


def _make_row(rng: Random) -> tuple[bytes, bytes]:
    key, value = rng.choice(_state_rows())
    value = value[4:]
    kind = rng.random()
    if kind < 0.05:
        key = b"\0position"
    elif kind < 0.4:
        key = _changed_msgpack(rng, key)
    if rng.random() < 0.8:
        value = _changed_msgpack(rng, value)
    return key, int(google_crc32c.value(key + value)).to_bytes(4, "little") + value


@lru_cache(maxsize=1)
def _checkpoint() -> Checkpoint:
    folder = "/dev/shm" if Path("/dev/shm").is_dir() else None  # where a sync costs nothing
    with tempfile.TemporaryDirectory(dir=folder) as made:
        return Checkpoint(Path(made) / "state.mdb")  # stays open without its name


def _load(row: tuple[bytes, bytes]) -> None:
    """Load a checkpoint with a row that another replica has sent, apply what comes next, and save that."""
    position_of([row])
    file = _checkpoint()
    file.restore([row])
    state = file.load()
    _ = state.groups(), file.rows()
    position = state.position
    for data in _entries()[:4]:
        state.apply(entries.opened(data, position).effect, position + len(data), 5)
        position += len(data)
    file.save(take_changes(state))


_RECORD: Final = (
    b'{"cluster":"default","broker_name":"broker-a","term":3,"master_id":1,"master_run":7,"in_sync":[0,1],"version":9,'
    b'"sync":true,"min_in_sync":1,"lease_s":3.0,"addresses":{"0":"127.0.0.1:1"},"log_term":2,"log_id":"00","common_end":5}'
)
_REPORT: Final = (
    b'{"cluster":"default","broker_name":"broker-a","replica_id":1,"run":7,"address":"127.0.0.1:1","last_term":2,'
    b'"log_end":100,"common_end":5,"known":' + _RECORD + b"}"
)


def _make_json(rng: Random) -> bytes:
    """Return what etcd holds of a replica set, changed."""
    made = rng.choice((_RECORD, _REPORT))
    if rng.random() < 0.3:
        return mutation.blob(rng, made)
    return json.dumps(_changed(rng, json.loads(made)), default=repr).encode()


def _decide(data: bytes) -> None:
    for kind in (ReplicaSet, ReplicaReport):
        try:
            found = msgspec.json.decode(data, type=kind)
        except ValueError:
            continue
        if isinstance(found, ReplicaSet):
            check_record(found)


def _make_queue_row(rng: Random) -> bytes:
    hashes = rng.choice((0, 1, 3, 64))
    made = struct.pack("<QIIqqqH", 4096, 100, 3, 5, 5, 5, hashes) + bytes(4 * hashes)
    if rng.random() < 0.5:
        made = unpack_row(10, made).pack(QueueKey(1, 2))[1]
    return mutation.blob(rng, made)


def _read_queue_row(data: bytes) -> None:
    queue = QueueKey(1, 2)
    check_row(ROW_KEY.pack(*queue, 10), data)
    row = unpack_row(10, data)
    assert row.pack(queue) == (ROW_KEY.pack(*queue, 10), data)
    count_in(data)
    may_hold(data, frozenset({1, 2}))
    position_in(data)


TARGETS = (
    Target("store.fact", _make_fact, decode_fact, (StoreError,)),
    Target("store.entry", _make_entry, _open_entry, (CorruptEntry, StoreError), 2),
    Target("store.entry-applied", _make_entry, _apply, (CorruptEntry, StoreError), 2),
    Target("store.checkpoint", _make_row, _load, (StoreError,), 0.3),
    Target("store.record", _make_json, _decide, (InvalidArgument,)),
    Target("store.queue-row", _make_queue_row, _read_queue_row, DAMAGE),
)
