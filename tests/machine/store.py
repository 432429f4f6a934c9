"""The store as the machine drives it. Everything that knows the broker's classes is in this module."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence, Set
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from random import Random
from typing import Any, NamedTuple, cast

import msgspec

import minimq_broker.assembly  # noqa: F401 - registers the features
from machine.model import Clock
from minimq_broker.backup.copy import StoreCopy
from minimq_broker.commit import store as broker
from minimq_broker.commit.jobs import (
    AppendJob,
    AppendStatus,
    AtomicJob,
    Call,
    FactJob,
    Job,
    OffsetsMoved,
    Progress,
    ReplicaJob,
)
from minimq_broker.commit.store import StoreOptions
from minimq_broker.features.compaction.compactor import Compactor
from minimq_broker.features.compaction.topic_compaction import TopicCompaction, compacted
from minimq_broker.features.delayed.delaying import next_due_ms
from minimq_broker.features.delayed.due_index import DelayedRange, DueIndex
from minimq_broker.features.delayed.jobs import DueJob, RecallJob
from minimq_broker.features.delayed.table import NO_KEY, Delay, RecallOutcome
from minimq_broker.features.retention.retention import RetentionOptions, RetentionRules
from minimq_broker.features.retention.retention_service import Retention
from minimq_broker.features.retention.topic_retention import with_rules
from minimq_broker.features.staged.facts import StagedSequences, TransactionDecided, TransactionsExpired
from minimq_broker.features.staged.jobs import DecideJob, EndJob, PublishJob
from minimq_broker.features.staged.staged_table import StagedTable
from minimq_broker.features.staged.staging import HalfOutcome, TransactionHold, TransactionId
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import (
    GroupRange,
    Leave,
    PopKey,
    PopOutcome,
    Run,
    RunState,
    Settle,
    Take,
)
from minimq_broker.features.work_queues.settling import Settled
from minimq_broker.features.work_queues.table import popped_queues
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep
from minimq_broker.log.entry import effect, stored_ms_of
from minimq_broker.log.rows import ReadLimits
from minimq_broker.log.sealed_rows import unseal
from minimq_broker.metrics.counters import Counters
from minimq_broker.replication.term_history import common_point
from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    OffsetsCommitted,
    Topic,
    TopicDeleted,
    TopicSet,
    known_facts,
)
from minimq_broker.state.queue_ends import NOTHING_NEEDED, HeldKey
from minimq_broker.state.state import QueueKey, State
from minimq_broker.state.state_rows import changed_rows
from minimq_common.batch import header as batch
from minimq_common.batch.builder import BatchBuilder
from minimq_common.batch.records import RecordBatch
from minimq_common.errors import CopyNeeded, Fenced, StaleSequence, TransactionEnded
from minimq_common.model import Message

__all__ = [
    "NOTHING_NEEDED",
    "AppendJob",
    "AtomicJob",
    "Clock",
    "CopyNeeded",
    "DecideJob",
    "DueJob",
    "EndJob",
    "FactJob",
    "Fenced",
    "GroupRange",
    "HalfOutcome",
    "HeldKey",
    "Job",
    "Leave",
    "PopJob",
    "PopKey",
    "PopOutcome",
    "PopStep",
    "PublishJob",
    "RecallOutcome",
    "Run",
    "RunState",
    "Settle",
    "StaleSequence",
    "StoreOptions",
    "Take",
    "TransactionEnded",
    "TransactionId",
]

ANSWER_TIMEOUT_S = 60.0
#: Age at which messages expire.
AGE_MS = 600_000
RETENTION = RetentionOptions(RetentionRules(AGE_MS), rewrite_after_s=0.0)
#: How long compacted topics keep tombstones.
TOMBSTONE_MS = 60_000
_ALL = ReadLimits(1 << 40, 1 << 40)
#: Attributes of a state that entries alone do not determine: caches, counters, and what a checkpoint has saved.
_NOT_STATE = frozenset(
    [
        "changed",
        "_changed",
        "begun",
        "made",
        "saved_mark",
        "saved_positions",
        "saved_topics",
        "_ordered",
        "_is_ordered",
        "_atomic",
    ]
)


class Found(NamedTuple):
    """A batch as a reader sees it."""

    base: int
    stored_ms: int
    data: bytes

    def __str__(self) -> str:
        return f"{self.base}: {RecordBatch(self.data).bodies()[0][:8]!r} at {self.stored_ms % 10_000_000}"


class Record(NamedTuple):
    """A message with a key as a reader sees it."""

    offset: int
    key: bytes
    body: bytes


def records(batches: Sequence[Found]) -> list[Record]:
    """Return the messages of batches that compaction may have left."""
    found: list[Record] = []
    for each in batches:
        opened = RecordBatch(each.data)
        rows = zip(opened.numbers(), opened.raw_keys(), opened.bodies(), strict=True)
        found += [Record(each.base + number, key, body) for number, key, body in rows]
    return found


class Store:
    """One open data directory. Nothing happens in it by time; all calls return when they are done."""

    def __init__(self, path: Path, clock: Callable[[], int], options: StoreOptions) -> None:
        self.path, self.options, self._clock = path, options, clock
        self._answers: SimpleQueue[Job] = SimpleQueue()
        self._holds = False
        self._store = broker.Store(path, self._notify, options, clock, alone=False)

    def _notify(self, jobs: list[Job], grown: Set[QueueKey]) -> None:
        for job in jobs:
            self._answers.put(job)

    def close(self) -> None:
        self._store.close()

    @property
    def popped(self) -> dict[tuple[str, int, int], PopQueue]:
        return popped_queues(self.state)

    # ---- writing ------------------------------------------------------------------------------------

    def write(self, *jobs: Job) -> None:
        """Submit jobs, so that they share a commit if they may; return when all are answered."""
        is_busy, go_on = threading.Event(), threading.Event()
        ends, end = self._ends, self.end
        while not self._answers.empty():  # of the begin of a term
            self._answers.get()
        if len(jobs) > 1:

            def wait() -> None:
                is_busy.set()
                go_on.wait(ANSWER_TIMEOUT_S)

            self._store.writer.submit(cast("Job", Call(wait)))
            assert is_busy.wait(ANSWER_TIMEOUT_S)
        for job in jobs:
            self._store.writer.submit(job)
        go_on.set()
        if self._holds:
            self._check_hidden(ends, end)
        waiting = set(jobs)
        while waiting:
            waiting.discard(self._answers.get(timeout=ANSWER_TIMEOUT_S))

    def _check_hidden(self, ends: dict[QueueKey, int], end: int) -> None:
        """Verify that nothing is answered, or seen by readers, before it is confirmed; then confirm it."""
        self._store.writer.call(lambda: None)  # behind all jobs
        seen = {key: self._store.queue_end(key).offset for key in self.state.ends}
        assert seen == {key: ends.get(key, 0) for key in seen}, "readers see what is not confirmed"
        if self._answers.qsize() == 1 and self.end > end:
            early = self._answers.get()
            self._answers.put(early)
            assert early.error is not None, "a job was answered before it was confirmed"
        self.confirm()

    @property
    def _ends(self) -> dict[QueueKey, int]:
        return {key: end.offset for key, end in self.state.ends.items()}

    def lead(self, term: int, *, holds: bool = False) -> None:
        """Become the master of a term; with `holds`, jobs wait for the confirmation of replicas."""
        self._store.writer.lead(term, waits_for_replicas=holds)
        self._holds = holds
        self.confirm()

    def confirm(self) -> None:
        """Learn that all replicas have the whole log."""
        self._store.confirmation.confirm(self.end)

    def save(self) -> None:
        """Save a checkpoint."""
        self._store.writer.call(self._save)

    def _save(self) -> None:
        assert self._store.writer._save()

    def roll(self) -> None:
        """Seal the active segment, unless it is empty."""
        log = self._store.log
        self._store.writer.call(lambda: log.roll(log.end) if log.end != log.active.start else None)

    # ---- as a slave ---------------------------------------------------------------------------------

    def follow(self) -> None:
        self._store.writer.follow()
        self._holds = False

    def take(self, entries: Sequence[bytes]) -> None:
        """Store entries of the master behind the others."""
        job = ReplicaJob(self.end, entries)
        self.write(job)
        assert job.error is None, job.error

    def next_entries(self, position: int, max_bytes: int) -> list[bytes]:
        """Return entries for a slave. Raises `CopyNeeded`."""
        if position < self._store.log.complete_from:  # as the master decides when a slave connects
            raise CopyNeeded("entries from there on may have been removed")
        return self._store.entries(position, max_bytes)

    def agrees_to(self, master: Store) -> int | None:
        """Return the position up to which the log is that of a master, None if that is unknown."""
        return common_point(self.state.terms, self.end, master.state.terms, master.end)

    def truncate(self, position: int) -> None:
        """Delete all entries from a position on. Raises `CopyNeeded`."""
        self._store.writer.truncate(position)

    def copy_to(self, path: Path, frame_bytes: int) -> None:
        """Replace a data directory that is not open by a copy of this one."""
        snapshot, log = self._store.snapshot(), self._store.log
        end = max(self._store.confirmed, snapshot.position)
        made = StoreCopy(
            path, snapshot, log.start, self.options.segment_bytes, complete_from=log.complete_from, replace=True
        )
        with closing(made) as copy:
            while copy.position < end:
                position, entries = self._store.part(copy.position, min(frame_bytes, end - copy.position))
                if position > copy.position:
                    copy.skip_to(position)
                if entries:
                    copy.put(entries)
            copy.finish()

    # ---- upkeep -------------------------------------------------------------------------------------

    def retain(self, needed_from: int = NOTHING_NEEDED) -> None:
        """Delete and rewrite segments by age, and for garbage, ahead of a log position that others need."""

        async def look() -> None:
            await Retention(self._store, Counters(), 1.0, lambda: needed_from, self._clock, RETENTION)._look()

        asyncio.run(look())

    def compact(self, needed_from: int = NOTHING_NEEDED) -> None:
        """Do a round of compaction, if one is due."""
        compactor = Compactor(self._store, lambda: needed_from, self._clock, interval_s=1.0)
        begun = compactor._begin(needed_from, self._store)
        if begun is not None and _result(begun.run()):
            compactor._finish(self._store, begun)

    # ---- reading ------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        return self._store.state

    @property
    def end(self) -> int:
        return self._store.end

    @property
    def saved(self) -> int:
        return self._store.saved_position

    def is_pinned(self, position: int) -> bool:
        """Return whether an entry and its segment stay, whatever retention deletes."""
        log, pins = self._store.log, self._store.pins()
        segment = max((each for each in log.segments if each.start <= position), key=lambda each: each.start)
        done = effect(memoryview(log.entry_at(position)), position)
        is_kept = any(each.keeps(done, position) and each.bytes_in(segment) for each in pins)
        return position >= self.saved or is_kept

    @property
    def segments(self) -> list[int]:
        return [segment.start for segment in self._store.log.segments]

    def entries(self, position: int) -> Iterator[tuple[int, bytes]]:
        with closing(self._store.log.entries(position)) as entries:
            for at, entry in entries:
                yield at, bytes(entry)

    def read(self, topic_id: int, queue_id: int) -> list[Found]:
        """Return all batches of a queue, as a reader finds them that starts at its first offset."""
        key, found = QueueKey(topic_id, queue_id), list[Found]()
        offset, end = self._store.bounds(key)
        while offset < end:
            batches, following = self._store.search(key, offset, _ALL)
            assert following > offset
            found += [Found(each.base_offset, each.stored_ms, each.data) for each in batches]
            offset = following
        return found

    def has_entry(self, position: int) -> bool:
        return any(segment.entry_at(position) is not None for segment in self._store.log.segments)

    def bounds(self, topic_id: int, queue_id: int) -> tuple[int, int]:
        return self._store.bounds(QueueKey(topic_id, queue_id))

    @property
    def next_due_ms(self) -> int | None:
        return next_due_ms(self._store)

    def delayed(self, topic_id: int) -> tuple[int, list[HeldKey]]:
        """Return how many delayed batches of a topic wait, and their keys, found page by page."""
        found, index = list[HeldKey](), DueIndex(self._store.log)
        after: HeldKey | None = NO_KEY
        while after is not None:
            page = index.page(
                topic_id, DelayedRange(after=after, max_batches=3), self.state.tables["delayed"].published
            )
            found += [each.key for each in page.batches]
            after = page.next
        return self.state.tables["delayed"].waiting(topic_id).batches, found

    def staged_position(self, transaction: TransactionId, producer_id: int, sequence: int) -> int:
        batch = self.staged.stages(transaction.name).find(transaction, producer_id, sequence)
        assert batch is not None
        return batch.position

    def unpublished_from(self, name: str, sequence: int) -> int:
        """Return the log position of a batch that is decided, and not published yet."""
        return next(batch.position for batch in self.staged.unpublished.of(name) if batch.sequence == sequence)

    @property
    def staged(self) -> StagedTable:
        return cast("StagedTable", self.state.tables["staged"])

    def saved_rows(self) -> dict[tuple[Any, ...], Any]:
        """Return the rows of the checkpoint, decoded."""
        return {
            _key_of(key): msgspec.msgpack.decode(unseal(key, value))
            for key, value in self._store.snapshot().rows
            if not key.startswith(b"\0")
        }


def _result(steps: Generator[None, None, bool]) -> bool:
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return bool(end.value)


def _key_of(key: bytes) -> tuple[Any, ...]:
    return tuple(msgspec.msgpack.decode(key))


class Replay:
    """The state that the entries of a log add up to."""

    def __init__(self) -> None:
        self.state = State()

    @property
    def position(self) -> int:
        return self.state.position

    def apply(self, position: int, entry: bytes) -> None:
        assert position == self.state.position, "the log has a gap"
        view = memoryview(entry)
        self.state.apply(effect(view, position), position + len(entry), stored_ms_of(view))

    def apply_anywhere(self, position: int, entry: bytes) -> None:
        """Apply an entry to a state that it was not made for."""
        view = memoryview(entry)
        self.state.position = position
        self.state.apply(effect(view, position), position + len(entry), stored_ms_of(view))

    def apply_fact(self, fact: Fact) -> None:
        """Apply a fact that is in no log."""
        self.state.apply(fact, self.state.position, 1)

    def difference(self, state: State) -> str | None:
        return difference(state, self.state)

    def rows(self) -> dict[tuple[Any, ...], Any]:
        """Return all rows that a checkpoint of this state has."""
        return {row: value for row, value in changed_rows(self.state) if value is not None}


def as_saved(rows: dict[tuple[Any, ...], Any]) -> dict[tuple[Any, ...], Any]:
    """Return rows as `Store.saved_rows` does."""
    return {row: msgspec.msgpack.decode(msgspec.msgpack.encode(value)) for row, value in rows.items()}


def difference(mine: Any, theirs: Any, where: str = "state") -> str | None:
    """Return the first difference of two states, None if they are equal."""
    if mine == theirs:
        return None
    if type(mine) is not type(theirs):
        return f"{where}: {mine!r} is not {theirs!r}"
    if isinstance(mine, PopQueue):
        return difference((mine.done, mine.next, mine.runs), (theirs.done, theirs.next, theirs.runs), where)
    if isinstance(mine, dict):
        if mine.keys() != theirs.keys():
            return f"{where}: keys {mine.keys() ^ theirs.keys()}"
        pairs = [(f"{where}[{key!r}]", value, theirs[key]) for key, value in mine.items()]
    elif isinstance(mine, list | tuple) and len(mine) == len(theirs):
        pairs = [(f"{where}[{at}]", *both) for at, both in enumerate(zip(mine, theirs, strict=True))]
    elif hasattr(mine, "__dict__"):
        pairs = [(f"{where}.{name}", getattr(mine, name), getattr(theirs, name)) for name in vars(mine)]
        pairs = [pair for pair in pairs if pair[0].rpartition(".")[2] not in _NOT_STATE]
    else:
        return f"{where}: {mine!r} is not {theirs!r}"
    return next(filter(None, (difference(one, other, name) for name, one, other in pairs)), None)


# ---- random facts -------------------------------------------------------------------------------------


def random_fact(chance: Random, names: Sequence[str], numbers: Sequence[int]) -> Fact:
    """Return a fact of any kind, made of names and numbers."""
    every = known_facts()
    kinds = cast("Any", msgspec.inspect.type_info(every)).types
    fact: Fact = msgspec.convert(_random(chance.choice(kinds), chance, names, numbers), every)
    return fact


def _random(kind: Any, chance: Random, names: Sequence[str], numbers: Sequence[int]) -> Any:
    def some(inner: Any) -> Any:
        return _random(inner, chance, names, numbers)

    values: dict[type, Callable[[Any], Any]] = {
        msgspec.inspect.StructType: lambda kind: _random_struct(kind, some),
        msgspec.inspect.NamedTupleType: lambda kind: [some(each.type) for each in kind.fields],
        msgspec.inspect.UnionType: lambda kind: some(chance.choice(kind.types)),
        msgspec.inspect.VarTupleType: lambda kind: [some(kind.item_type) for _ in range(chance.choice((0, 1, 1, 3)))],
        msgspec.inspect.TupleType: lambda kind: [some(each) for each in kind.item_types],
        msgspec.inspect.EnumType: lambda kind: chance.choice([*kind.cls]).value,
        msgspec.inspect.StrType: lambda kind: chance.choice(names),
        msgspec.inspect.IntType: lambda kind: min(chance.choice(numbers), kind.le or (kind.lt or 1 << 62) - 1),
        msgspec.inspect.BoolType: lambda kind: chance.random() < 0.5,
        msgspec.inspect.BytesType: lambda kind: b"bytes",
        msgspec.inspect.NoneType: lambda kind: None,
        msgspec.inspect.DictType: lambda kind: {},
    }
    return values[type(kind)](kind)


def _random_struct(kind: Any, some: Callable[[Any], Any]) -> Any:
    fields = {each.encode_name: some(each.type) for each in kind.fields}
    if kind.array_like:
        return [*fields.values()]
    return {**({kind.tag_field: kind.tag} if kind.tag_field else {}), **fields}


# ---- batches and jobs ---------------------------------------------------------------------------------


def make_batch(
    bodies: Sequence[bytes],
    producer_id: int = 0,
    sequence: int = 0,
    unsettled: int = 0,
    message_group: str | None = None,
) -> bytes:
    builder = BatchBuilder(1 << 20, message_group=message_group)
    builder.add([Message("", body) for body in bodies])
    return builder.build(1_600_000_000_000, producer_id, sequence, unsettled)


def make_keyed_batch(messages: Sequence[tuple[str, bytes]]) -> bytes:
    """Return a batch of messages with keys; an empty body is a tombstone."""
    builder = BatchBuilder(1 << 20)
    builder.add([Message("", body, None, (key,)) if body else Message.tombstone("", key) for key, body in messages])
    return builder.build(1_600_000_000_000, 0, 0)


def append(topic: str, queue_id: int, data: bytes, transaction: TransactionId | None = None) -> AppendJob:
    hold = None if transaction is None else TransactionHold(transaction)
    return AppendJob(topic, queue_id, data, batch.read_header(data), hold)


def delay(topic: str, queue_id: int, data: bytes, due_ms: int, *, recallable: bool) -> AppendJob:
    delay = Delay(due_ms=due_ms, recallable=recallable)
    return AppendJob(topic, queue_id, data, batch.read_header(data), hold=delay)


def recall(topic: str, keys: Sequence[HeldKey]) -> RecallJob:
    return RecallJob(topic, keys)


def decided(transaction: TransactionId, parts: Mapping[int, Sequence[int]]) -> TransactionDecided:
    """Return the fact that a transaction is decided, by the sequences of its producers."""
    sequences = tuple(StagedSequences(producer_id, tuple(each)) for producer_id, each in parts.items())
    return TransactionDecided(*transaction, b"decision", sequences)


def decide(fact: TransactionDecided) -> DecideJob:
    return DecideJob(fact.name, fact, "broker")


def expire(transaction: TransactionId) -> FactJob:
    return record(TransactionsExpired((transaction,)))


def was_repeated(job: AppendJob) -> bool:
    return job.status is AppendStatus.ALREADY_STORED


def group_hash(data: bytes) -> int:
    return batch.read_header(data).group_hash


def atomic(
    batches: Sequence[AppendJob],
    offsets: OffsetsCommitted | None = None,
    begins: Sequence[int] = (),
    settles: PopJob | None = None,
) -> AtomicJob:
    progress = Progress() if settles is None else Settled(settles, bool(batches), lambda step: None)
    return AtomicJob(batches, progress if offsets is None else OffsetsMoved(offsets, begins))


def record(make: Callable[[State], Fact | None] | Fact, *, alone: bool = True) -> FactJob:
    return FactJob(make if callable(make) else lambda _: make, alone)


def create_topic(name: str, queues: int, kind: str, age_ms: int) -> FactJob:
    def make(state: State) -> TopicSet:
        topic = with_rules(Topic(name, state.position, queues, queues, fifo=kind == "fifo"), age_ms, 0)
        return TopicSet(compacted(topic, queues, TopicCompaction(0, TOMBSTONE_MS, 1)) if kind == "compacted" else topic)

    return record(make)


def delete_topic(name: str) -> FactJob:
    return record(TopicDeleted(name))


def delete_group(name: str) -> FactJob:
    return record(GroupDeleted(name))


def offsets(group: str, *items: tuple[int, int, int], forced: bool = False) -> OffsetsCommitted:
    """Return the fact that a group commits (topic id, queue id, offset)."""
    return OffsetsCommitted(group, tuple(CommittedOffset(*item) for item in items), forced)
