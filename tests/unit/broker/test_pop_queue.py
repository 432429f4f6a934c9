"""Queues that are popped: hand-outs, answers, deadlines and faults in any order, against one dictionary of messages."""

from __future__ import annotations

import itertools
import os
from contextlib import nullcontext
from typing import NamedTuple

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minimq_broker.core import pop_queue
from minimq_broker.core.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    OffsetsCommitted,
    Topic,
    TopicDeleted,
    TopicSet,
    decode_fact,
    encode_fact,
)
from minimq_broker.core.pop_draft import PopDraft, PopKey
from minimq_broker.core.pop_queue import PopOutcome, PopQueue, Settle, Take
from minimq_broker.core.pop_runs import MAX_HELD, PopMoved, QueueMoved, Run, RunState, handle_epoch
from minimq_broker.core.state import State
from minimq_broker.core.state_rows import changed_rows, load_row
from minimq_common.errors import InvalidArgument, StoreError, SystemBusy

#: How many schedules; MINIMQ_TEST_SCHEDULES=100000 for a long run.
SCHEDULES = int(os.environ.get("MINIMQ_TEST_SCHEDULES", "60"))
TOPIC = 17
KEY = PopKey("workers", TOPIC, 0)
CLIENTS = st.sampled_from(["a", "b", "c"])


class Told(NamedTuple):
    """The truth about one message that was handed out and is not settled."""

    state: RunState
    tries: int
    until_ms: int
    epoch: int
    client: str


class Saved(NamedTuple):
    """The model behind an entry of the log: each rule changes the model before it records what it did."""

    messages: dict[int, Told]
    done: set[int]
    next: int
    start: int

    def copied(self) -> Saved:
        return Saved(dict(self.messages), set(self.done), self.next, self.start)


class Popping(RuleBasedStateMachine):
    """One group that pops one queue. Everything goes through facts as bytes; the model knows messages alone."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State()
        self.log: list[tuple[bytes, int, Saved]] = []
        self.position = 0
        self.checkpoint: tuple[int, dict[bytes, bytes]] = (0, {})
        self.now_ms = 1_000
        self.term = 1
        self.end = 0
        self.messages: dict[int, Told] = {}
        self.done: set[int] = set()
        self.next = self.start = 0
        self.handles: list[tuple[int, int, int]] = []
        self.epochs: set[int] = set()
        self.record(TopicSet(Topic("orders", TOPIC, 1, 1)))

    # ---- the log -----------------------------------------------------------------------------------

    def record(self, fact: Fact) -> None:
        data = encode_fact(fact)
        self.log.append((data, self.now_ms, Saved(self.messages, self.done, self.next, self.start).copied()))
        self.position += 100
        self.state.apply(decode_fact(data), self.position, self.now_ms)

    def replayed(self, rows: dict[bytes, bytes], first: int) -> State:
        state = State()
        for key, value in rows.items():
            load_row(state, msgspec.msgpack.decode(key), msgspec.msgpack.decode(value))
        state.position = first * 100
        for data, at_ms, _ in self.log[first:]:
            state.apply(decode_fact(data), state.position + 100, at_ms)
        return state

    def draft(self) -> PopDraft:
        queue = self.state.popped.get(KEY)
        if queue is None:
            return PopDraft(KEY, PopQueue(self.state.committed.get(KEY, 0)))
        return PopDraft(KEY, queue.copy(self.now_ms))

    def change(self, draft: PopDraft) -> None:
        moved = draft.changes()
        if moved is not None:
            self.record(PopMoved(KEY.group, (moved,)))
            assert self.state.popped[KEY].row() == draft.queue.row()

    # ---- rules -------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 40))
    def send(self, count: int) -> None:
        self.end += count

    @rule(client=CLIENTS, most=st.integers(1, 50), invisible=st.integers(1, 100))
    def take(self, client: str, most: int, invisible: int) -> None:
        draft, epoch = self.draft(), handle_epoch(self.term, self.position)
        until = self.now_ms + invisible
        runs = draft.take(Take(client, most, until), self.now_ms, self.end, epoch)
        assert sum(run.count for run in runs) <= most
        if runs:
            assert epoch not in self.epochs
            self.epochs.add(epoch)
        waiting = [at for at, told in self.messages.items() if told.until_ms <= self.now_ms]
        assert runs or not (waiting or self.next < self.end), "messages are there, and nobody gets them"
        for run in runs:
            for at in range(run.first, run.end):
                before = self.messages.get(at)
                if before is None:
                    assert at == self.next < self.end
                    self.next += 1
                else:
                    assert before.until_ms <= self.now_ms, "it is in two hands"
                assert at not in self.done
                self.messages[at] = Told(RunState.OUT, (before.tries if before else 0) + 1, until, epoch, client)
                assert run.tries == self.messages[at].tries
            self.handles.append((run.first, run.end, epoch))
        tries = {run.tries for run in runs}
        assert tries <= {1} or 1 not in tries, "those that failed may take others along"
        if max(tries, default=0) > 3:
            assert sum(run.count for run in runs) == 1
        self.change(draft)

    @precondition(lambda self: self.handles)
    @rule(data=st.data(), outcome=st.sampled_from(PopOutcome), delay=st.integers(0, 80))
    def settle(self, data: st.DataObject, outcome: PopOutcome, delay: int) -> None:
        first, end, epoch = data.draw(st.sampled_from(self.handles))
        picked = data.draw(st.sets(st.integers(first, end - 1), min_size=1)) if end - first > 1 else {first}
        spans = spans_of(sorted(picked))
        draft, until = self.draft(), self.now_ms + delay
        if max(picked) >= self.next:  # the group was reset or deleted since, or the end of the log cut off
            is_known = any(told.epoch == epoch for told in self.messages.values())
            with pytest.raises(InvalidArgument) if is_known else nullcontext():
                assert draft.settle(Settle(epoch, spans, outcome, until))
            assert draft.changes() is None
            return
        expired = {
            at for one, behind in draft.settle(Settle(epoch, spans, outcome, until)) for at in range(one, behind)
        }
        for at in picked:
            told = self.messages.get(at)
            if told is None:
                assert at not in expired
                assert at in self.done or at < self.start
            elif told.epoch != epoch or (
                outcome in (PopOutcome.EXTEND, PopOutcome.RETURN) and told.state is RunState.FREE
            ):
                assert at in expired
            else:
                assert at not in expired
                self.answer(at, told, outcome, until)
        self.change(draft)

    def answer(self, at: int, told: Told, outcome: PopOutcome, until: int) -> None:
        match outcome:
            case PopOutcome.DONE:
                del self.messages[at]
                self.done.add(at)
            case PopOutcome.FREE:
                self.messages[at] = told._replace(state=RunState.FREE, until_ms=until, client="")
            case PopOutcome.RETURN:
                self.messages[at] = Told(RunState.FREE, told.tries - 1, 0, told.epoch, "")
            case PopOutcome.EXTEND:
                self.messages[at] = told._replace(until_ms=until)

    @rule(client=CLIENTS)
    def die(self, client: str) -> None:
        draft = self.draft()
        draft.free(client)
        for at, told in self.messages.items():
            if told.client == client:
                self.messages[at] = Told(RunState.FREE, told.tries, 0, told.epoch, "")
        self.change(draft)

    @rule(passed=st.integers(1, 120))
    def wait(self, passed: int) -> None:
        self.now_ms += passed

    @rule()
    def save(self) -> None:
        rows = self.checkpoint[1].copy()
        for row, value in changed_rows(self.state):
            key = msgspec.msgpack.encode(row)
            if value is None:
                rows.pop(key, None)
            else:
                rows[key] = msgspec.msgpack.encode(value)
        self.state.saved()
        self.checkpoint = len(self.log), rows

    @rule()
    def crash(self) -> None:
        before = self.state
        self.state = self.replayed(self.checkpoint[1], self.checkpoint[0])
        assert self.state.popped.keys() == before.popped.keys()
        for key, queue in before.popped.items():
            assert self.state.popped[key].row() == queue.row()
            assert self.state.popped[key].held == queue.held
        self.term += 1

    @precondition(lambda self: len(self.log) > 1)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        keep = data.draw(st.integers(1, len(self.log) - 1))
        self.messages, self.done, self.next, self.start = self.log[keep - 1][2].copied()
        del self.log[keep:]
        if self.checkpoint[0] > keep:
            self.checkpoint = 0, {}
        self.state = self.replayed(self.checkpoint[1], self.checkpoint[0])
        self.position = keep * 100
        self.term += 1
        if "orders" not in self.state.topics:  # cut between its end and its new begin: nobody pops what is not there
            self.record(TopicSet(Topic("orders", TOPIC, 1, 1)))

    @rule(data=st.data())
    def reset(self, data: st.DataObject) -> None:
        offset = data.draw(st.integers(0, self.end))
        self.begin(offset)
        self.record(OffsetsCommitted("workers", (CommittedOffset(TOPIC, 0, offset),), forced=True))

    @rule(is_topic=st.booleans())
    def delete(self, is_topic: bool) -> None:
        self.begin(0)
        if is_topic:
            self.record(TopicDeleted("orders"))
            self.record(TopicSet(Topic("orders", TOPIC, 1, 1)))
        else:
            self.record(GroupDeleted("workers"))
        assert KEY not in self.state.popped

    def begin(self, offset: int) -> None:
        self.messages, self.done, self.next, self.start = {}, set(), offset, offset

    @rule(data=st.data())
    def retention(self, data: st.DataObject) -> None:
        first = data.draw(st.integers(0, self.end))
        draft = self.draft()
        missed = [at for at in range(self.start, first) if at not in self.done]
        lost = draft.drop_before(first)
        if first > self.draft().queue.done:
            assert lost == len(missed)
            self.messages = {at: told for at, told in self.messages.items() if at >= first}
            self.done.update(range(first))
            self.next = max(self.next, first)
        self.change(draft)

    # ---- always ------------------------------------------------------------------------------------

    @invariant()
    def is_as_told(self) -> None:
        queue = self.state.popped.get(KEY)
        if queue is None:
            assert not self.messages
            return
        runs, at = queue.runs, queue.done
        for before, run in itertools.pairwise(runs):
            assert before.end == run.first
            assert not run.continues(before)
        for run in runs:
            assert at == run.first < run.end
            at = run.end
        assert at == queue.next == self.next
        found = {
            at: Told(run.state, run.tries, run.until_ms, run.epoch, run.client)
            for run in runs
            if run.state is not RunState.DONE
            for at in range(run.first, run.end)
        }
        assert found == self.messages
        assert queue.done == self.state.committed[KEY] == min(self.messages, default=self.next)
        assert queue.held == sum(told.state is RunState.OUT for told in self.messages.values())
        assert queue.due_ms <= queue.earliest_ms()


def spans_of(offsets: list[int]) -> list[tuple[int, int]]:
    """Return offsets as spans of those that follow on each other."""
    spans: list[tuple[int, int]] = []
    for at in offsets:
        if spans and spans[-1][1] == at:
            spans[-1] = spans[-1][0], at + 1
        else:
            spans.append((at, at + 1))
    return spans


TestPopping = pytest.mark.rounds(pytest.mark.timeout(86_400 if SCHEDULES > 1_000 else 120)(Popping.TestCase))
TestPopping.settings = settings(
    max_examples=SCHEDULES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


def taken(queue: PopQueue, most: int, *, now_ms: int = 0, end: int = 1_000_000, epoch: int = 1) -> list[Run]:
    runs = queue.take(Take("a", most, now_ms + 10), now_ms, end, epoch)
    for run in runs:
        queue.put(run)
    return runs


def test_a_consumer_that_takes_without_end_gets_no_more_than_the_limit() -> None:
    queue = PopQueue()
    while taken(queue, 30_000):
        pass
    assert queue.held == MAX_HELD


def test_many_pieces_stop_new_messages_and_no_answers_that_mend_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pop_queue, "MAX_RUNS", 8)
    queue = PopQueue()
    taken(queue, 100)
    with pytest.raises(SystemBusy, match="pieces"):
        queue.settle(Settle(1, [(at, at + 1) for at in range(1, 40, 2)], PopOutcome.DONE))
    assert len(queue) == 1
    for run in queue.settle(Settle(1, [(at, at + 1) for at in range(1, 13, 2)], PopOutcome.DONE))[0]:
        queue.put(run)
    assert taken(queue, 100) == []
    for run in queue.settle(Settle(1, [(0, 100)], PopOutcome.DONE))[0]:
        queue.put(run)
    assert (queue.done, len(queue), queue.held) == (100, 0, 0)
    assert taken(queue, 5)


def test_a_message_that_kills_its_consumers_comes_alone_in_the_end() -> None:
    queue, now, sizes = PopQueue(), 0, list[int]()
    for _ in range(300):
        runs = taken(queue, 512, now_ms=now, end=512, epoch=now + 1)
        if not runs:
            break
        sizes.append(sum(run.count for run in runs))
        now += 10
        if any(run.first <= 300 < run.end for run in runs):
            continue  # it dies with all that it has
        for run in runs:
            for after in queue.settle(Settle(run.epoch, [(run.first, run.end)], PopOutcome.DONE))[0]:
                queue.put(after)
    assert sizes[0] == 512
    assert sizes[-1] == 1
    assert [(run.first, run.end) for run in queue.runs if run.state is not RunState.DONE] == [(300, 301)]


@pytest.mark.parametrize(
    "spans", [[(0, 11)], [(5, 5)], [(6, 5)], [(-1, 3)], [(4, 6), (2, 3)], [(4, 6), (5, 7)], [(0, 2), (9, 11)]]
)
def test_an_answer_to_what_was_not_handed_out_changes_nothing(spans: list[tuple[int, int]]) -> None:
    queue = PopQueue()
    taken(queue, 10)
    before = queue.row()
    with pytest.raises(InvalidArgument, match="handed out end at 9"):
        queue.settle(Settle(1, spans, PopOutcome.DONE))
    assert queue.row() == before


def test_an_answer_to_a_hand_out_of_before_a_reset_comes_too_late() -> None:
    queue = PopQueue()
    taken(queue, 10)
    unknown = 99
    spans = [(0, 2), (5, 40), (40, 50)]
    assert queue.settle(Settle(unknown, spans, PopOutcome.DONE)) == ([], spans)


def test_a_fact_out_of_its_bounds_is_refused() -> None:
    fact = PopMoved("workers", (QueueMoved(TOPIC, 0, (Run(0, 4, RunState.OUT, 1, 5, 6, "a"),)),))
    assert decode_fact(encode_fact(fact)) == fact
    for wrong in (
        Run(-1, 4, RunState.OUT),
        Run(0, 4, RunState.OUT, -1),
        Run(0, 1 << 63, RunState.OUT),
        Run(0, 4, 3),  # type: ignore[arg-type]
        Run(0, 4, RunState.OUT, 1, 5, 6, "a" * 513),
    ):
        with pytest.raises(StoreError):
            decode_fact(encode_fact(PopMoved("workers", (QueueMoved(TOPIC, 0, (wrong,)),))))
    with pytest.raises(StoreError, match="were popped"):
        PopQueue(5).put(Run(4, 6, RunState.OUT))


def test_handles_differ_between_terms_and_positions() -> None:
    assert len({handle_epoch(term, position) for term in range(9) for position in range(0, 900, 100)}) == 81
    assert handle_epoch((1 << 31) - 1, 1 << 62) < 1 << 63
