"""Delayed batches against a model: a sorted dictionary of those that wait.

Each run is random and follows from its seed, which it prints.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, field
from random import Random

import pytest

from minimq_broker.backup.check import check_directory
from minimq_broker.commit.jobs import AppendStatus
from minimq_broker.features.delayed import uncommitted_delays
from minimq_broker.features.delayed.delays import NO_KEY, Delay, DueKey, RecallOutcome, Waiting
from minimq_broker.features.delayed.due_index import DelayedRange
from minimq_common.batch.records import RecordBatch
from support.chance import SEED, rounds
from support.rewritings import rewrite
from support.stores import TIMEOUT_S, OpenStore, Stores, numbered_batch

RUNS = rounds(5)
STEPS = 120
DAY_MS = 86_400_000
YEARS_MS = 400 * DAY_MS


@dataclass
class Model:
    """The expected state of a store: by key what waits, with its body, whether it is recallable; and the queue."""

    waiting: dict[DueKey, tuple[bytes, bool]] = field(default_factory=dict)
    recalled: set[DueKey] = field(default_factory=set)
    queue: list[bytes] = field(default_factory=list)

    def copy(self) -> Model:
        return Model(dict(self.waiting), set(self.recalled), list(self.queue))

    def due(self, now_ms: int) -> list[DueKey]:
        return sorted(key for key in self.waiting if key.due_ms <= now_ms)

    def recall(self, key: DueKey) -> RecallOutcome:
        if key in self.recalled:
            return RecallOutcome.ALREADY_RECALLED
        if key not in self.waiting:
            return RecallOutcome.TOO_LATE
        if not self.waiting[key][1]:
            return RecallOutcome.NOT_RECALLABLE
        del self.waiting[key]
        self.recalled.add(key)
        return RecallOutcome.RECALLED


class Run:
    """A store and a slave, one of which leads, and the model of it after each step."""

    def __init__(self, stores: Stores, seed: int) -> None:
        self.stores, self.rng = stores, Random(seed)
        self.clock = stores.clock
        self.names = iter(range(1_000))
        self.store, self.slave = self.open(), self.open()
        self.store.store.lead(1)
        self.store.create_topic("t")
        self.model = Model()
        self.history: list[tuple[int, Model]] = []
        self.sequence = 0
        #: Recalled batches of which nothing may be known any more.
        self.forgotten: set[DueKey] = set()
        self.sent: list[tuple[bytes, Delay, DueKey]] = []
        self.note()

    def open(self, name: str = "") -> OpenStore:
        return self.stores.open(name or f"store-{next(self.names)}", alone=False, segment_bytes=1 << 16)

    def note(self) -> None:
        self.history.append((self.store.store.end, self.model.copy()))

    def step(self) -> None:
        steps = [
            *[self.append] * 10,
            *[self.send_again] * 2,
            *[self.recall] * 6,
            *[self.publish] * 6,
            *[self.follow] * 3,
            self.roll,
            self.rewrite,
            self.remove,
            self.restart,
            self.crash,
            self.fail_over,
            self.set_clock_back,
        ]
        self.rng.choice(steps)()
        self.note()
        self.compare()

    def compare(self) -> None:
        store, model = self.store, self.model
        assert self.bodies() == model.queue
        count = len(model.waiting)
        topic_id = store.state.topic("t").topic_id
        assert store.state.delays.waiting(topic_id) == Waiting(count, count)
        next_ms = store.store.next_due_ms
        if model.waiting:
            assert next_ms is not None
            assert next_ms <= min(model.waiting).due_ms
        found: list[DueKey] = []
        last: DueKey | None = NO_KEY
        while last is not None:
            page = store.store.delayed(topic_id, DelayedRange(after=last, max_batches=self.rng.randint(1, 50)))
            found += [each.key for each in page.batches]
            last = page.next
        assert found == sorted(model.waiting)

    def bodies(self) -> list[bytes]:
        first = self.store.store.bounds(self.store.key("t", 0))[0]
        kept = self.store.bodies("t", 0, first)
        return [*self.model.queue[:first], *kept]

    # ---- steps --------------------------------------------------------------------------------------

    def append(self) -> None:
        self.sequence += 1
        body = b"%d" % self.sequence
        due_ms = self.clock.now_ms + self.rng.choice((-5, 0, 1, 10, 100, 100, 1_000, 1_000, 50_000, 30 * DAY_MS))
        delay = Delay(due_ms=due_ms, recallable=self.rng.random() < 0.8)
        data = numbered_batch(7, self.sequence, body)
        job = self.store.submit("t", 0, data, delay=delay).result(TIMEOUT_S)
        if due_ms <= self.clock.now_ms:
            assert (job.due, job.base_offset) == (None, len(self.model.queue))
            self.model.queue.append(body)
            return
        assert job.due is not None
        assert due_ms <= job.due.due_ms <= due_ms + 1_001
        self.model.waiting[job.due] = body, delay.recallable
        self.sent.append((data, delay, job.due))

    def send_again(self) -> None:
        if self.sent:
            data, delay, key = self.rng.choice(self.sent)
            job = self.store.submit("t", 0, data, delay=delay).result(TIMEOUT_S)
            assert (job.status, job.due) == (AppendStatus.ALREADY_STORED, key)

    def recall(self) -> None:
        known = [key for _, _, key in self.sent]
        keys = [self.rng.choice(known) for _ in range(self.rng.randint(1, 3))] if known else []
        keys.append(DueKey(self.clock.now_ms + 5, self.rng.randrange(1 << 20)))
        expected = [self.model.recall(key) for key in keys]
        for key, outcome, found in zip(keys, expected, self.store.recall("t", *keys), strict=True):
            assert found == outcome or (found is RecallOutcome.TOO_LATE and key in self.forgotten)

    def publish(self) -> None:
        self.clock.now_ms += self.rng.choice((0, 1, 5, 50, 500, 5_000, -30))
        due = self.model.due(self.clock.now_ms)
        jobs = self.store.publish_due() if self.rng.random() < 0.7 else [self.store.submit_due().result(TIMEOUT_S)]
        published = sum(job.published for job in jobs)
        assert jobs[-1].has_more or published == len(due)
        assert all(late >= 0 for job in jobs for late in job.late_ms)
        self.take_published(due[:published])

    def take_published(self, keys: list[DueKey]) -> None:
        for key in keys:
            self.model.queue.append(self.model.waiting.pop(key)[0])

    def follow(self) -> None:
        if self.slave.store.end >= self.store.store.log.complete_from:
            self.slave.take_from(self.store, self.rng.choice((1, 200, 1_000, 1 << 30)))

    def roll(self) -> None:
        log = self.store.store.log
        self.store.store.call(lambda: log.roll(log.end) if log.end != log.active.start else None)

    def rewrite(self) -> None:
        """Rewrite sealed segments; batches of the queue stay."""
        self.restart()  # so that all is saved
        store = self.store.store
        sealed = [index for index, each in enumerate(store.log.segments[1:]) if each.start <= store.saved_position]
        if sealed and self.slave.store.end >= store.saved_position:
            rewrite(store, 0, self.rng.choice(sealed) + 1, lambda queue, offset: True)
            self.forgotten.update(key for key in self.model.recalled if key <= store.state.delays.mark)

    def remove(self) -> None:
        """Remove the oldest segment if nothing of it is needed."""
        if self.slave.store.end >= self.store.store.end:
            self.store.store.old.remove_first(self.store.store.saved_position)
            self.forgotten.update(self.model.recalled)

    def restart(self) -> None:
        name = self.store.path.name
        self.store.close()
        self.store = self.open(name)
        self.lead()

    def set_clock_back(self) -> None:
        self.clock.now_ms -= self.rng.choice((500, 2_000, 20_000, DAY_MS))

    def crash(self) -> None:
        """Go on with what is on the disk: nothing but the log is saved."""
        name = f"store-{next(self.names)}"
        shutil.copytree(self.store.path, self.stores.folder / name, ignore=shutil.ignore_patterns("*-lock"))
        self.store.close()
        self.store = self.open(name)
        self.lead()

    def fail_over(self) -> None:
        """Let the slave lead, with as much as it has. The other one is cut there, and follows."""
        end = self.slave.store.end
        if end < self.history[0][0]:
            return
        former, self.store = self.store, self.slave
        position, model = max((each for each in self.history if each[0] <= end), key=lambda each: each[0])
        self.model = model.copy()
        self.history = [each for each in self.history if each[0] <= position]
        if end > position:  # within a commit, of which each entry stands by itself
            self.lead()
            self.take_published(sorted(self.model.waiting)[: self.count() - len(self.model.queue)])
            missing = self.store.state.delays.waiting(self.store.state.topic("t").topic_id).batches
            assert missing == len(self.model.waiting)
        else:
            self.lead()
        self.sent = [each for each in self.sent if each[2].id < end]
        former.close()
        self.slave = self.open(former.path.name)
        if self.slave.store.end > end and self.slave.store.saved_position <= end:
            self.slave.store.truncate(end)
        elif self.slave.store.end > end:  # its checkpoint is behind the cut
            self.slave = self.open()
        self.follow()

    def lead(self) -> None:
        self.store.store.lead(self.store.store.term + 1)

    def count(self) -> int:
        return self.store.state.end(self.store.key("t", 0)).offset


@pytest.mark.rounds
@pytest.mark.parametrize("seed", range(SEED, SEED + RUNS))
def test_each_is_published_once_in_order_never_early_and_not_when_recalled(
    stores: Stores, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    monkeypatch.setattr(uncommitted_delays, "MAX_PUBLISHED", 5)
    monkeypatch.setattr(uncommitted_delays, "_LOOKED_AT", 12)
    print(f"MINIMQ_TEST_SEED={seed} MINIMQ_TEST_ROUNDS=1")
    run = Run(stores, seed)
    for _ in range(STEPS):
        run.step()
    run.clock.now_ms += YEARS_MS
    keys = run.model.due(run.clock.now_ms)
    run.store.publish_due()
    run.take_published(keys)
    run.compare()
    assert run.model.waiting == {}
    assert run.store.store.next_due_ms is None
    run.store.close()
    assert check_directory(run.store.path).findings == []


def test_a_year_of_due_times_passes_with_a_clock_that_is_set(stores: Stores) -> None:
    store, rng = stores.open(), Random(SEED)
    store.create_topic("t")
    began = stores.clock.now_ms
    due: dict[bytes, int] = {}
    keys: dict[bytes, DueKey] = {}
    for number in range(800):
        body = b"%d" % number
        due[body] = began + rng.randrange(1, 365 * DAY_MS)
        keys[body] = store.delay("t", 0, due[body], body)
    for body in rng.sample(sorted(due), 100):
        assert store.recall("t", keys[body]) == [RecallOutcome.RECALLED]
        del due[body]
    found: dict[bytes, int] = {}
    while (next_ms := store.store.next_due_ms) is not None:
        stores.clock.now_ms = next_ms - 1  # nothing comes a moment too early
        assert sum(job.published for job in store.publish_due()) == 0
        stores.clock.now_ms = next_ms if rng.random() < 0.5 else next_ms + rng.randrange(DAY_MS)
        store.publish_due()
        if rng.random() < 0.02:
            store.close()
            store = stores.open()
        for stored in store.read("t", 0, len(found)):
            [body] = RecordBatch(stored.data).bodies()
            assert body not in found
            found[body] = stored.stored_ms
    assert found.keys() == due.keys()
    assert all(due[body] <= at < due[body] + DAY_MS for body, at in found.items())
    assert list(found) == sorted(due, key=lambda body: keys[body])
