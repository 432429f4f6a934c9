"""Groups that pop queues, in virtual time: group commits, faults and clocks, against one dictionary of messages.

Everything goes through facts as bytes, as in a broker. The model knows single messages alone, and learns from answers.
"""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Callable
from operator import attrgetter
from typing import NamedTuple

import msgspec

from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import (
    GroupRange,
    Leave,
    PopKey,
    PopMoved,
    PopOutcome,
    Run,
    Settle,
    Take,
    handle_epoch,
)
from minimq_broker.features.work_queues.uncommitted_pops import PopJob, PopStep, UncommittedPops
from minimq_broker.log.clock import PopClock
from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    OffsetsCommitted,
    TermBegun,
    Topic,
    TopicDeleted,
    TopicSet,
    decode_fact,
    encode_fact,
)
from minimq_broker.state.state import State
from minimq_broker.state.state_rows import changed_rows, load_row
from support.pop_model import PopLimits, PopModel

GROUPS = ("workers", "others")
CLIENTS = ("a", "b", "c")
#: Those who get what is left in the end: each may have one message at a time that may have cost others their lives.
_GOOD = ("good 1", "good 2", "good 3", "good 4")
TOPIC = 17
KEYS = tuple(PopKey(group, TOPIC, queue_id) for group in GROUPS for queue_id in (0, 1))
_ENTRY = 100
_HOUR_MS = 3_600_000
#: The lanes of so many messages are known that nobody has sent yet.
_GROUP_HASHES_AHEAD = 100
_end_of = attrgetter("end")


class Times:
    """The clocks of a machine, in ms: that of the day, which may be set, and one that only goes on."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Set both to where they begin."""
        self.day_ms, self.steady_ms = 1_000, 0

    def time_ns(self) -> int:
        return self.day_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.steady_ms * 1_000_000


class Saved(NamedTuple):
    """An entry of the log, and what was true when it was written."""

    data: bytes
    at_ms: int
    models: dict[PopKey, PopModel]
    ends: dict[int, int]


class PopWorld:
    """Two groups that pop the same two queues.

    Args:
        chance: decides what happens.
        times: of the machine.
        clock: makes the clock of a broker that begins to serve, not before a time.
        limits: of the queues.
        fifo: whether their messages have lanes.
    """

    def __init__(
        self, chance: random.Random, times: Times, clock: Callable[[int], PopClock], limits: PopLimits, *, fifo: bool
    ) -> None:
        self._chance, self._times, self._new_clock = chance, times, clock
        self._limits = limits
        self.trace: list[tuple[object, ...]] = []
        self._log: list[Saved] = []
        self._checkpoint: tuple[int, dict[bytes, bytes]] = (0, {})
        self._state = State()
        self._term = 0
        self._stored_ms = 0
        self._firsts = {0: 0, 1: 0}
        self._ends = {0: 0, 1: 0}
        self._fifo = fifo
        self._stretches: dict[int, list[GroupRange]] = {0: [], 1: []}
        self._group_hashes: dict[int, list[int]] = {0: [], 1: []}
        for queue_id in (0, 1):
            self._add_group_hashes(queue_id)
        self._models = {key: PopModel(group_hashes=self._group_hashes[key.queue_id]) for key in KEYS}
        #: Of each queue what was checked last: what has not changed since need not be checked again.
        self._checked: dict[PopKey, tuple[object, ...]] = {}
        self._handles: list[tuple[PopKey, Run]] = []
        self._epochs: set[int] = set()
        self._begin()
        self._record(TopicSet(Topic("orders", TOPIC, 2, 1)))

    def _add_group_hashes(self, queue_id: int) -> None:
        """Decide on the lanes of messages to come: those of one batch are of one lane."""
        group_hashes, stretches = self._group_hashes[queue_id], self._stretches[queue_id]
        while self._fifo and len(group_hashes) < self._ends[queue_id] + _GROUP_HASHES_AHEAD:
            count, group_hash = self._chance.choice((1, 1, 2, 3, 10)), self._chance.randint(1, 4)
            stretches.append(GroupRange(len(group_hashes), len(group_hashes) + count, group_hash))
            group_hashes += [group_hash] * count

    def _some_group_hashes(self, key: PopKey) -> list[GroupRange] | None:
        """Return the lanes of some of the messages that nobody had."""
        if not self._fifo:
            return None
        first = max(self._models[key].next, self._firsts[key.queue_id])
        stretches, most = self._stretches[key.queue_id], self._chance.choice((2, 8, 30))
        begin = bisect_right(stretches, first, key=_end_of)
        return stretches[begin : begin + most]

    def play(self, count: int) -> None:
        """Let so many things happen; then let good workers take and settle what is left."""
        kinds = {
            self.send: 5,
            self.commit: 20,
            self.wait: 5,
            self.set_clock: 1,
            self.save: 2,
            self.restart: 2,
            self.cut_log: 1,
            self.reset: 1,
            self.delete: 1,
            self.retain: 1,
        }
        for happens in self._chance.choices([*kinds], [*kinds.values()], k=count):
            happens()
        self.finish()

    # ---- the log -----------------------------------------------------------------------------------

    @property
    def position(self) -> int:
        return len(self._log) * _ENTRY

    def _record(self, fact: Fact) -> None:
        data = encode_fact(fact)
        self._log.append(Saved(data, self._times.day_ms, self._models.copy(), self._ends.copy()))
        self._state.apply(decode_fact(data), self.position, self._times.day_ms)

    def _replayed(self, rows: dict[bytes, bytes], first: int) -> State:
        state = State()
        for key, value in rows.items():
            load_row(state, msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
        state.position = first * _ENTRY
        for entry in self._log[first:]:
            state.apply(decode_fact(entry.data), state.position + _ENTRY, entry.at_ms)
        return state

    def _begin(self) -> None:
        """Begin to serve, as a broker that starts or takes over does."""
        self._term += 1
        self._clock = self._new_clock(self._stored_ms)
        assert self._clock.now_ms() == max(self._times.day_ms, self._stored_ms)
        self._ahead_ms = self._clock.now_ms() - self._times.steady_ms
        self._record(TermBegun(self._term))

    @property
    def now_ms(self) -> int:
        """The time since the broker began to serve; clocks that are set do not change it."""
        return self._ahead_ms + self._times.steady_ms

    # ---- what happens ------------------------------------------------------------------------------

    def send(self) -> None:
        queue_id, count = self._chance.randrange(2), self._chance.randint(1, 40)
        self.trace.append(("send", queue_id, count))
        self._ends[queue_id] += count
        self._add_group_hashes(queue_id)
        self._stored_ms = max(self._stored_ms, self._times.day_ms)

    def wait(self) -> None:
        passed = self._chance.randint(1, 120)
        self.trace.append(("wait", passed))
        self._times.day_ms += passed
        self._times.steady_ms += passed
        assert self._clock.now_ms() == self.now_ms

    def set_clock(self) -> None:
        """The clock of the machine jumps."""
        self._times.day_ms = max(0, self._times.day_ms + self._chance.choice((-_HOUR_MS, -50, 50, _HOUR_MS)))
        self.trace.append(("clock", self._times.day_ms))
        assert self._clock.now_ms() == self.now_ms

    def save(self) -> None:
        """A checkpoint is saved."""
        self.trace.append(("save",))
        rows = self._checkpoint[1].copy()
        for row, value in changed_rows(self._state):
            key = msgspec.msgpack.encode(row)
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = msgspec.msgpack.encode(value)
        self._state.saved()
        self._checkpoint = len(self._log), rows

    def restart(self) -> None:
        """The broker dies and comes back, or a slave takes over: it has the log, and no checkpoint of the master."""
        is_slave = self._chance.random() < 0.5
        self.trace.append(("restart", is_slave))
        before = self._state
        self._state = self._replayed({}, 0) if is_slave else self._replayed(self._checkpoint[1], self._checkpoint[0])
        if is_slave:
            self._checkpoint = 0, {}
        assert self._state.popped.keys() == before.popped.keys()
        for key, queue in before.popped.items():
            restored = self._state.popped[key]
            assert [restored.block_row(number) for number in restored.blocks()] == [
                queue.block_row(number) for number in queue.blocks()
            ]
            assert (restored.next, restored.held, restored.due_ms) == (queue.next, queue.held, queue.due_ms)
        self._begin()

    def cut_log(self) -> None:
        """A replica that had not all of the log takes over: what it has not did not happen."""
        keep = self._chance.randint(max(2, len(self._log) - 12), len(self._log))
        self.trace.append(("cut", keep))
        self._models, self._ends = self._log[keep - 1].models.copy(), self._log[keep - 1].ends.copy()
        del self._log[keep:]
        self._firsts = {queue_id: min(first, self._ends[queue_id]) for queue_id, first in self._firsts.items()}
        self._checkpoint = 0, {}
        self._state = self._replayed({}, 0)
        self._begin()
        if "orders" not in self._state.topics:  # cut between its end and its new begin
            self._record(TopicSet(Topic("orders", TOPIC, 2, 1)))
        self._check()

    def reset(self) -> None:
        """A group is set back or ahead."""
        key = self._chance.choice(KEYS)
        offset = self._chance.randint(0, self._ends[key.queue_id])
        self.trace.append(("reset", key, offset))
        self._models[key] = self._models[key].begun_at(offset)
        self._record(OffsetsCommitted(key.group, (CommittedOffset(TOPIC, key.queue_id, offset),), forced=True))
        self._check()

    def delete(self) -> None:
        """The topic is deleted and made anew, or a group is deleted."""
        group = self._chance.choice((*GROUPS, None))
        self.trace.append(("delete", group))
        for key in KEYS:
            if group in (key.group, None):
                self._models[key] = self._models[key].begun_at(0)
        if group is None:
            self._record(TopicDeleted("orders"))
            self._record(TopicSet(Topic("orders", TOPIC, 2, 1)))
        else:
            self._record(GroupDeleted(group))
        assert not [key for key in self._state.popped if group in (key[0], None)]
        self._check()

    def retain(self) -> None:
        """The first messages of a queue are deleted; groups hear of it with what they do next."""
        queue_id = self._chance.randrange(2)
        self._firsts[queue_id] = self._chance.randint(0, self._ends[queue_id])
        self.trace.append(("retain", queue_id, self._firsts[queue_id]))

    def finish(self) -> None:
        """Let all consumers die and all times pass: then good ones get and settle everything."""
        self.trace.append(("finish",))
        for group in GROUPS:
            keys = [key for key in KEYS if key.group == group]
            self._write(group, [PopStep(1, key, Leave(client)) for client in CLIENTS for key in keys])
        self._times.steady_ms += 3 * _HOUR_MS
        for group in GROUPS:
            keys = [key for key in KEYS if key.group == group]
            for _ in range(sum(self._ends.values()) + 2):
                took = [self._last_take(key, client) for key in keys for client in _GOOD]
                epoch = self._write(group, took)
                spans = {step.key: list[tuple[int, int]]() for step in took if step.runs}
                for step in took:
                    spans.get(step.key, []).extend((run.first, run.end) for run in step.runs)
                if not spans:
                    break
                settles = [Settle(epoch, sorted(each), PopOutcome.DONE) for each in spans.values()]
                self._write(group, [PopStep(1, key, settle) for key, settle in zip(spans, settles, strict=True)])
        for key, model in self._models.items():
            assert (model.messages, model.next) == ({}, max(self._ends[key.queue_id], model.start))

    def _last_take(self, key: PopKey, client: str) -> PopStep:
        most, group_hashes = self._chance.choice((1, 50, 50, 50)), self._some_group_hashes(key)
        stored = self._firsts[key.queue_id], self._ends[key.queue_id]
        return PopStep(1, key, Take(client, most, self.now_ms + 1_000, group_hashes=group_hashes), stored)

    # ---- group commits -----------------------------------------------------------------------------

    def commit(self) -> None:
        """A group commit decides jobs of one or more steps each. It may fail: then nothing has happened."""
        chance, jobs = self._chance, list[tuple[str, list[PopStep]]]()
        for _ in range(chance.choice((1, 1, 2, 3))):
            group = chance.choice(GROUPS)
            jobs.append((group, [self._step(group) for _ in range(chance.choice((1, 1, 2, 4)))]))
        self._write_all(jobs, fails=chance.random() < 0.1)

    def _write(self, group: str, steps: list[PopStep]) -> int:
        """Write a job by itself; return the epoch of its hand-outs."""
        [epoch] = self._write_all([(group, steps)], fails=False)
        return epoch

    def _write_all(self, jobs: list[tuple[str, list[PopStep]]], *, fails: bool) -> list[int]:
        tried = list[PopQueue]()
        before, drafts, epochs = self._models, UncommittedPops(self._state, tried), list[int]()
        recorded, handles = list[tuple[bytes, dict[PopKey, PopModel]]](), list[tuple[PopKey, Run]]()
        self._models = before.copy()
        for group, steps in jobs:
            job = PopJob(group, steps, self._clock.now_ms())
            facts = drafts.decide(job, handle_epoch(self._term, self.position + len(recorded) * _ENTRY))
            fact = facts[0] if facts else None
            self.trace += [("step", step, job.epoch) for step in steps]
            for key in {step.key for step in steps}:
                self._models[key] = self._models[key].copy()
            for step in steps:
                self._judge(step, job, fact)
                handles += [(step.key, run) for run in step.runs if not isinstance(step.what, Leave)]
            if fact is not None:
                recorded.append((encode_fact(fact), self._models.copy()))
            epochs.append(job.epoch)
        for queue in tried:
            queue.end()
        if fails:
            self.trace.append(("failed",))
            self._models = before
        else:
            told = {run.epoch for _, run in handles}
            assert not told & self._epochs, "two hand-outs have the same handle"
            self._epochs |= told
            self._handles += handles
            for data, models in recorded:
                self._log.append(Saved(data, self._times.day_ms, models, self._ends.copy()))
                self._state.apply(decode_fact(data), self.position, self._times.day_ms)
        self._check()
        return epochs

    def _step(self, group: str) -> PopStep:
        what, key = self._chance.random(), PopKey(group, TOPIC, self._chance.randrange(2))
        if what < 0.45:
            return PopStep(1, key, self._wanted(key), (self._firsts[key.queue_id], self._ends[key.queue_id]))
        handles = [(of, run) for of, run in self._handles[-30:] if of.group == group]
        if what < 0.93 and handles:
            key, run = self._chance.choice(handles)
            return PopStep(1, key, self._settle(run))
        return PopStep(1, key, Leave(self._chance.choice(CLIENTS)))

    def _wanted(self, key: PopKey) -> Take:
        chance, end = self._chance, self._ends[key.queue_id]
        unwanted, first = (0, 0), max(self._models[key].next, self._firsts[key.queue_id])
        if chance.random() < 0.1 and first < end:
            unwanted = first, chance.randint(first, end)
        until_ms, most = self.now_ms + chance.randint(1, 100), chance.choice((1, 3, 8, 50))
        redeliver_only, group_hashes = chance.random() < 0.05, self._some_group_hashes(key)
        ahead = group_hashes is None and chance.random() < 0.2  # the order is that of who asks
        present = frozenset(client for client in CLIENTS if chance.random() < 0.5)
        return Take(chance.choice(CLIENTS), most, until_ms, unwanted, redeliver_only, ahead, group_hashes, present)

    def _settle(self, run: Run) -> Settle:
        chance = self._chance
        share = chance.choice((0.6, 0.9, 1.0))
        picked = [at for at in range(run.first, run.end) if chance.random() < share] or [run.first]
        epoch = run.epoch if chance.random() < 0.95 else run.epoch + 1
        outcome = chance.choice((PopOutcome.DONE, *PopOutcome))
        return Settle(epoch, spans_of(picked), outcome, self.now_ms + chance.randint(0, 80))

    def _judge(self, step: PopStep, job: PopJob, fact: PopMoved | None) -> None:
        """Learn from the answer to a step, after those before it."""
        model, what = self._models[step.key], step.what
        assert step.missed == model.drop_before(step.stored[0])
        assert step.error is None or isinstance(what, Settle)
        match what:
            case Take():
                model.take(step, what, self.now_ms, job.epoch, fact, self._limits)
            case Settle():
                model.settle(step, what)
            case Leave():
                model.free(what)

    def _check(self) -> None:
        """Compare all queues with their models, if either has changed since the last time."""
        for key, model in self._models.items():
            queue, end = self._state.popped.get(key), self._ends[key.queue_id]
            assert queue is None or queue.done == self._state.committed[key]
            seen = (model, end) if queue is None else (model, end, queue.done, queue.held, queue.due_ms, queue.runs)
            if self._checked.get(key) != seen:
                self._checked[key] = seen
                model.check(queue, end, self._limits)


def spans_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return offsets as spans of those that follow on each other."""
    spans: list[tuple[int, int]] = []
    for at in offsets:
        if spans and spans[-1][1] == at:
            spans[-1] = spans[-1][0], at + 1
        else:
            spans.append((at, at + 1))
    return spans
