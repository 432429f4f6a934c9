"""A data directory with all kinds of entries and rows, as text: the rows of its LMDB files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import lmdb

from golden.samples import sample
from machine import store
from machine.store import Clock, HalfOutcome, PopKey, PopStep, Store, StoreOptions, Take, TransactionId
from minimq_broker.groups.groups import GroupConfig
from minimq_broker.state.facts import CommittedOffset, GroupAgreed, GroupStarted, OffsetsCommitted, PermissionSet
from minimq_common.model import Permission

LOG_ID = "0123456789abcdef"
_HOUR_MS = 3_600_000
#: Numbers of transactions are larger than all ids of topics.
_FIRST = 1 << 40
#: The tables of a segment, also of one without rows in them.
_ALWAYS = (b"log", b"consumequeue", b"due")
OPTIONS = StoreOptions(segment_bytes=1 << 16, checkpoint_interval_s=1e9)


def make(path: Path) -> None:
    """Write the directory."""
    clock = Clock()
    opened = Store(path, clock, OPTIONS)
    opened.lead(1)
    for name, kind in (("plain", "plain"), ("fifo", "fifo"), ("newest", "compacted"), ("gone", "plain")):
        opened.write(store.create_topic(name, 2, kind, 0))
    topics = {name: topic.topic_id for name, topic in opened.state.topics.items()}
    _write_batches(opened)
    _delay(opened, clock)
    _stage(opened)
    _write_groups(opened, topics)
    _take(opened, PopKey("workers", topics["plain"], 0), clock.now_ms)
    both = [
        store.append("plain", 1, store.make_batch([b"both"])),
        store.append("fifo", 0, store.make_batch([b"both"], message_group="h")),
    ]
    opened.write(store.atomic(both, store.offsets("billing", (topics["fifo"], 0, 1)), [0]))
    opened.write(store.record(PermissionSet(Permission.READ)))
    opened.save()
    opened.close()


def _write_batches(opened: Store) -> None:
    """Leave a rewritten segment, and one with a compacted batch."""
    opened.write(store.append("gone", 0, store.make_batch([b"deleted"])))
    opened.write(store.delete_topic("gone"))
    opened.write(store.append("plain", 0, store.make_batch([b"one", b"two"], 7, 1)))
    opened.write(store.append("fifo", 1, store.make_batch([b"first", b"second"], message_group="g")))
    for body in (b"older", b"newer"):
        opened.write(store.append("newest", 0, store.make_keyed_batch([("key", body)])))
        opened.roll()
    opened.save()
    opened.compact()


def _delay(opened: Store, clock: Clock) -> None:
    """Release a batch, recall one, and leave one."""
    data, due_ms = store.make_batch([b"delayed"]), clock.now_ms + _HOUR_MS
    recalled = store.delay("plain", 0, data, due_ms, recallable=True)
    for job in (
        store.delay("plain", 0, data, clock.now_ms + 10, recallable=False),
        store.delay("plain", 0, data, due_ms, recallable=True),
        recalled,
    ):
        opened.write(job)
    assert recalled.held is not None
    opened.write(store.recall("plain", [recalled.held]))
    clock.now_ms += 20
    opened.write(store.DueJob())


def _stage(opened: Store) -> None:
    """Decide a transaction, let one expire, leave one open, and roll half messages back."""
    for number, end in enumerate(("decided", "expired", "open"), 100):
        transaction = TransactionId(f"job-{end}", _FIRST + number)
        opened.write(store.append("plain", 1, store.make_batch([end.encode()], number, 1), transaction))
        if end == "decided":
            opened.write(store.decide(store.decided(transaction, {number: [1]})))
            opened.write(store.PublishJob(transaction.name))
        elif end == "expired":
            opened.write(store.expire(transaction))
    half = TransactionId("@shop", _FIRST)
    opened.write(store.append("plain", 1, store.make_batch([b"half"], 109, 1), half))
    opened.write(store.EndJob(*half, HalfOutcome.ROLLED_BACK))


def _write_groups(opened: Store, topics: dict[str, int]) -> None:
    for fact in (
        OffsetsCommitted("billing", (CommittedOffset(topics["plain"], 0, 1),)),
        OffsetsCommitted("spark", (CommittedOffset(topics["plain"], 0, 1),), published=True),
        GroupStarted("billing", topics["fifo"], (CommittedOffset(topics["fifo"], 0, 0),), 5),
        GroupAgreed("billing", sample(GroupConfig)),
        OffsetsCommitted("gone", (CommittedOffset(topics["plain"], 0, 1),)),
    ):
        opened.write(store.record(fact))
    opened.write(store.delete_group("gone"))


def _take(opened: Store, key: PopKey, now_ms: int) -> None:
    take = Take("worker-1", 2, now_ms + _HOUR_MS, (0, 0), present=("worker-1",))
    opened.write(store.PopJob(key.group, [PopStep(1, key, take, opened.bounds(*key[1:]))], now_ms))


def as_lines(path: Path) -> Iterator[str]:
    """Yield a line for each row of the LMDB files of a directory, and for each other file that has content."""
    for file in _files(path):
        name = file.relative_to(path).as_posix()
        if file.suffix != ".mdb":
            yield f"{name} {file.read_bytes().hex()}"
            continue
        with lmdb.open(str(file), subdir=False, readonly=True, lock=False, max_dbs=8) as environment:
            for table in _tables(environment, file):
                with environment.begin(db=environment.open_db(table, create=False)) as transaction:
                    for key, value in transaction.cursor():
                        yield f"{name} {(table or b'-').decode()} {bytes(key).hex()} {bytes(value).hex()}"


def restore(lines: Iterator[str], path: Path) -> None:
    """Write the files of a directory from its lines."""
    files: dict[str, list[list[str]]] = {}
    for name, *row in (line.split() for line in lines):
        files.setdefault(name, []).append(row)
    (path / "commitlog").mkdir(parents=True)
    for name, content in files.items():
        if not name.endswith(".mdb"):
            (path / name).write_bytes(bytes.fromhex("".join(content[0])))
            continue
        with lmdb.open(str(path / name), subdir=False, lock=False, max_dbs=8, map_size=1 << 24) as environment:
            for always in _ALWAYS if name != "state.mdb" else ():
                environment.open_db(always)
            for table_name, key, value in content:
                table = None if table_name == "-" else table_name.encode()
                with environment.begin(db=environment.open_db(table), write=True) as transaction:
                    transaction.put(bytes.fromhex(key), bytes.fromhex(value))


def _files(path: Path) -> list[Path]:
    found = [each for each in path.rglob("*") if each.is_file() and each.suffix != ".mdb-lock" and each.name != "lock"]
    return sorted(found)


def _tables(environment: lmdb.Environment, file: Path) -> list[bytes | None]:
    if file.name == "state.mdb":
        return [None]
    with environment.begin() as transaction:
        return [bytes(key) for key, _ in transaction.cursor()]
