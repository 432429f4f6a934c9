"""The store machine: random steps on a real store, each compared with its log and with a model.

A step is the name of a rule and a seed, from which all choices of the step follow. So a failing run is shrunk by
leaving steps out, and repeated by its seed. In any step the machine may crash: it continues with a copy of the files,
taken at one of the writes or syncs of the step.
"""

from __future__ import annotations

import shutil
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count
from pathlib import Path
from random import Random
from typing import NamedTuple

from machine.camera import Camera, Shot
from machine.model import Batch, Clock, Model, Queue, Topic
from machine.store import AGE_MS, NOTHING_NEEDED, Found, Job, Replay, Store, StoreOptions, as_saved, difference
from support.page_reading import in_this_process

#: Modules with rules; each registers its own.
PARTS = ("kernel", "delayed", "staged", "work_queues", "retention", "compaction", "replication", "totality")
#: Steps on one data directory. Small states are checked fast, and shrink well.
EPISODE = 150
#: Share of the episodes that a feature takes part in.
_SHARE = 0.6
_SEGMENT_BYTES = 96 << 10


class Step(NamedTuple):
    rule: str
    seed: int
    #: The write or sync ahead of which the machine crashes; None: it does not.
    crash: int | None = None


Run = Callable[["Machine"], None]


@dataclass(frozen=True)
class Rule:
    run: Run
    weight: int
    #: Share of these steps in which the machine crashes, and ahead of how many of their writes and syncs it may.
    crashes: float
    points: int

    @property
    def part(self) -> str:
        return self.run.__module__.rpartition(".")[2]


RULES: dict[str, Rule] = {}
#: Return the log positions of held batches that are not in their queue yet, and must stay in the log.
HELD: list[Callable[[Model], Iterable[int]]] = []
#: By kind of topic: compares what a reader finds with all batches that were stored.
READERS: dict[str, Callable[[Machine, Topic, tuple[Batch, ...], list[Found]], None]] = {}
#: Run after each step, and at the end of an episode.
CHECKS: list[Callable[[Machine], None]] = []
ENDS: list[Callable[[Machine], None]] = []


def rule(
    weight: int, *, crashes: float = 0.06, points: int = 8
) -> Callable[[Callable[[Machine], None]], Callable[[Machine], None]]:
    """Register a step that is chosen so often, relative to others."""

    def register(run: Run) -> Run:
        RULES[run.__name__] = Rule(run, weight, crashes, points)
        return run

    return register


class Slave:
    """A replica of the store of a machine, which has a part of its log."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.replay = Replay()


class Machine:
    """One store, and what it must hold."""

    def __init__(self, folder: Path, camera: Camera) -> None:
        self._folder, self._camera = folder, camera
        self._names = count()
        self.chance = Random(0)
        self.numbers = count(1)
        self._terms = count(1)
        self.clock = Clock()
        self.options = StoreOptions(segment_bytes=_SEGMENT_BYTES, checkpoint_interval_s=1e9)
        self.model = Model()
        #: Log positions at which nothing was being written, and the model there.
        self.history: list[tuple[int, Model]] = [(0, self.model.copy())]
        #: All entries that were ever written, also those that the store no longer has.
        self.log: list[tuple[int, bytes]] = []
        self.replay = Replay()
        #: The latest time of the clock, which may be set back.
        self.latest_ms = self.clock.now_ms
        #: The latest times at which expired messages were deleted, by both clocks.
        self.retained_ms = self.retained_steady_ms = 0
        #: What happened, for a failure.
        self.notes: list[str] = []
        self._acknowledged: int | None = None
        self.slave: Slave | None = None
        #: First and end position of atomic appends.
        self.atomic: list[tuple[int, int]] = []
        #: Whether jobs wait for the confirmation of replicas.
        self.holds = False
        self.store = self.open(self.new_path())
        self.lead()

    def new_path(self) -> Path:
        return self._folder / f"store-{next(self._names)}"

    def open(self, path: Path) -> Store:
        return Store(path, self.clock, self.options)

    def close(self) -> None:
        self.store.close()
        if self.slave is not None:
            self.slave.store.close()

    @property
    def needed_from(self) -> int:
        """The log position from which on the slave needs the log."""
        return NOTHING_NEEDED if self.slave is None else self.slave.store.end

    # ---- steps ----------------------------------------------------------------------------------------

    def step(self, step: Step) -> None:
        """Do a step, and crash in it or check everything behind it."""
        self.chance = Random(step.seed)
        self.notes.append(f"{step.rule}{'' if step.crash is None else f', crash at {step.crash}'}")
        copy = self.new_path()
        if step.crash is not None:
            self._camera.arm(self._shot(self.store.path, copy, step.crash), self._crashed)
        RULES[step.rule].run(self)
        self.mark()
        if step.crash is None:
            self.check()
            return
        self._camera.finish()
        self.store.close()
        self.recover(copy)

    def _shot(self, path: Path, copy: Path, point: int) -> Shot:
        counts_removals, loses_names = self.chance.random() < 0.5, self.chance.random() < 0.3
        return Shot(path, copy, point // 4 if counts_removals else point, loses_names, counts_removals)

    def _crashed(self) -> None:
        self._acknowledged = len(self.history) - 1

    def crash_in(self, path: Path, copy: Path, run: Callable[[], None], point: int) -> None:
        """Copy a directory as it is at a write or sync of what runs, or behind it."""
        self._camera.arm(self._shot(path, copy, point))
        run()
        self._camera.finish()

    def recover(self, path: Path) -> None:
        """Open what a crash has left: all that was acknowledged, and all or nothing of the rest."""
        former = self.store.path
        self.store = self.open(path)
        shutil.rmtree(former, ignore_errors=True)
        end = self.store.end
        found = [at for at, (position, _) in enumerate(self.history) if position == end]
        assert found, f"the log ends at {end}, where no commit ends"
        assert found[-1] >= (self._acknowledged or 0), "what was acknowledged is lost"
        self.go_back(found[-1])
        self.lead()

    def go_back(self, index: int) -> None:
        """Take the model and the log of an earlier time."""
        del self.history[index + 1 :]
        end, model = self.history[index]
        self.model = model.copy()
        self.atomic = [each for each in self.atomic if each[1] <= end]
        if self.replay.position > end:
            self.log = [(position, entry) for position, entry in self.log if position < end]
            self.replay = Replay()
            for position, entry in self.log:
                self.replay.apply(position, entry)

    def lead(self) -> None:
        """Check what was recovered; then become the master, and check again."""
        self.store.confirm()
        self.check()
        self.store.lead(next(self._terms), holds=self.holds)
        self.mark()
        self.check()

    def mark(self) -> None:
        """Note that a commit is over, whose effect is in the model."""
        end = self.store.end
        if end == self.history[-1][0]:
            self.history.pop()  # what readers may see can change without an entry
        self.history.append((end, self.model.copy()))

    def write(self, *jobs: Job) -> None:
        self.store.write(*jobs)

    def retain(self, of: Store, needed_from: int = NOTHING_NEEDED) -> None:
        """Delete expired messages from a store."""
        self.retained_ms = max(self.retained_ms, self.clock.now_ms)
        self.retained_steady_ms = self.clock.steady_ms
        of.retain(needed_from)

    def write_atomic(self, job: Job) -> None:
        start = self.store.end
        self.write(job)
        self.atomic.append((start, self.store.end))

    def note(self, text: str) -> None:
        self.notes[-1] += f": {text}"

    # ---- choices --------------------------------------------------------------------------------------

    def some_topic(self, kind: str = "plain") -> Topic | None:
        topics = [topic for topic in self.model.topics.values() if topic.kind == kind]
        return self.chance.choice(topics) if topics else None

    def some_queue(self, kind: str = "plain") -> tuple[Topic, Queue] | None:
        topic = self.some_topic(kind)
        return None if topic is None else (topic, (topic.id, self.chance.randrange(topic.queues)))

    def number(self) -> int:
        return next(self.numbers)

    # ---- checks ---------------------------------------------------------------------------------------

    def check(self) -> None:
        """Compare state, readers and checkpoint with the log and the model."""
        self.latest_ms = max(self.latest_ms, self.clock.now_ms)
        self._check_log()
        for topic in self.model.topics.values():
            for queue_id in range(topic.queues):
                queue = (topic.id, queue_id)
                self.check_queue(topic, self.model.queues.get(queue, ()), self.store.read(*queue))
        found = self.store.state.committed
        assert found == self.model.offsets, f"offsets {found} instead of {self.model.offsets}"
        self._check_rows()
        self._check_held()
        for check in CHECKS:
            check(self)

    def _check_log(self) -> None:
        for position, entry in self.store.entries(self.replay.position):
            self.replay.apply(position, entry)
            self.log.append((position, entry))
        assert self.replay.position == self.store.end
        text = difference(self.store.state, self.replay.state)
        assert text is None, f"the state is not that of the log: {text}"

    def check_queue(self, topic: Topic, expected: tuple[Batch, ...], found: list[Found]) -> None:
        """Compare what a reader finds in a queue with the model."""
        if topic.kind in READERS:
            READERS[topic.kind](self, topic, expected, found)
            return
        # Expired batches may be deleted. Hidden ones may reappear until the first round of retention after a start.
        age_ms, there = topic.age_ms or AGE_MS, {each.base for each in found}
        for each in expected:
            is_old = each.steady_ms + age_ms <= self.retained_steady_ms  # its store time may be ahead of the clock
            is_expired = is_old or each.stored_ms + age_ms <= self.retained_ms
            assert is_expired or each.base in there, f"{topic.name}: the batch at {each.base} is gone"
        mine = [Found(each.base, each.stored_ms, each.data) for each in expected if each.base in there]
        assert found == mine, f"{topic.name}: readers see {[*map(str, found)]} instead of {[*map(str, mine)]}"

    def _check_rows(self) -> None:
        rows = self.replay.rows()
        gone = self.model.deleted_topics | self.model.deleted_groups
        left = [row for row in rows if not gone.isdisjoint(row[1:])]
        assert not left, f"rows of what was deleted: {left}"
        assert not self.model.deleted_groups & self.store.state.known_groups()
        if self.store.saved == self.store.end:
            text = difference(self.store.saved_rows(), as_saved(rows), "checkpoint")
            assert text is None, f"the checkpoint is not that of the log: {text}"

    def _check_held(self) -> None:
        """Check that the log keeps all batches that may have to be released, also after a crash."""
        released = self.model.table("released")
        held = [position for position, at in released.items() if at > self.store.saved]
        for positions in HELD:
            held += positions(self.model)
        for position in held:
            assert self.store.has_entry(position), f"the held batch at {position} is gone"
            assert self.store.is_pinned(position), f"the held batch at {position} is not pinned"

    def release(self, queue: Queue, messages: int, data: bytes, position: int) -> None:
        """Add a held batch, whose entry is at a log position, to its queue."""
        self.model.append(queue, messages, self.clock, data)
        self.model.table("released")[position] = self.store.end


# ---- runs ---------------------------------------------------------------------------------------------


class Failure(Exception):
    """A failed run, shrunk."""


def load_rules() -> None:
    for part in PARTS:
        import_module(f"machine.{part}")


def steps_of(seed: int) -> list[Step]:
    """Return the steps of one episode: of the kernel and some features, as each holds others back."""
    chance = Random(seed)
    parts = [part for part in PARTS if part == "kernel" or chance.random() < _SHARE]
    rules = {name: each for part in parts for name, each in RULES.items() if each.part == part}
    names = chance.choices([*rules], [each.weight for each in rules.values()], k=EPISODE)
    crashes = [
        chance.randrange(RULES[name].points) if chance.random() < RULES[name].crashes else None for name in names
    ]
    return [Step(name, chance.getrandbits(32), crash) for name, crash in zip(names, crashes, strict=True)]


def play(folder: Path, steps: list[Step]) -> tuple[BaseException, list[str]] | None:
    """Play an episode; return its failure and what happened, or None."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    camera = Camera(folder)
    with camera.watching():
        machine = Machine(folder, camera)
        try:
            for step in steps:
                machine.step(step)
            machine.notes.append("end")
            for end in ENDS:
                end(machine)
        except Exception as error:  # noqa: BLE001 - whatever it is, it is shrunk and shown
            return error, machine.notes
        finally:
            machine.close()
    return None


def run(folder: Path, seed: int, steps: int, *, shrink_s: float = 60.0) -> int:
    """Play so many steps from a seed on; return how many. Raises `Failure` with the shortest failing run found."""
    load_rules()
    done = 0
    with in_this_process():
        for number in count():
            if done >= steps:
                break
            chosen = steps_of(seed + number)
            found = play(folder, chosen)
            if found is not None:
                raise Failure(_report(folder, seed + number, chosen, found, shrink_s)) from found[0]
            done += len(chosen)
    shutil.rmtree(folder, ignore_errors=True)
    return done


def _report(folder: Path, seed: int, steps: list[Step], found: tuple[BaseException, list[str]], shrink_s: float) -> str:
    until = time.monotonic() + shrink_s
    steps = steps[: len(found[1])]
    for shorter in _parts(len(steps)):
        if time.monotonic() > until:
            break
        fewer = steps[: shorter.start] + steps[shorter.stop :]
        again = play(folder, fewer) if len(fewer) < len(steps) else None
        if again is not None and type(again[0]) is type(found[0]):
            steps, found = fewer, again
    error, notes = found
    places = [
        f"{Path(each.filename).name}:{each.lineno} {each.line}" for each in traceback.extract_tb(error.__traceback__)
    ]
    lines = [f"seed {seed}, {len(steps)} steps: {type(error).__name__}: {error}", *notes, *places[-4:]]
    return "\n  ".join(lines)


def _parts(length: int) -> Iterator[range]:
    """Yield ranges to leave out, from the end on: large ones first."""
    size = length // 2
    while size >= 1:
        for start in range(length - size, -1, -size):
            yield range(start, start + size)
        size //= 2
