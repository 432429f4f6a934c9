"""The truth about single messages of a queue that a group pops, as it follows from what consumers are told."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from minimq_broker.features.work_queues import pop_blocks
from minimq_broker.features.work_queues.pop_queue import PopQueue
from minimq_broker.features.work_queues.pop_runs import (
    NEVER,
    Leave,
    PopKey,
    PopMoved,
    PopOutcome,
    Run,
    RunState,
    Settle,
    Take,
)
from minimq_broker.features.work_queues.uncommitted_pops import PopStep
from minimq_common.errors import InvalidArgument


class Told(NamedTuple):
    """The state of one delivered and unsettled message."""

    state: RunState
    delivery_count: int
    until_ms: int
    epoch: int
    client: str
    lost: int = 0

    def losses(self, wanted: Take) -> int:
        """Return how many consumers have died with it, once it is due."""
        is_lost = self.state is RunState.OUT and self.client and self.client not in wanted.present
        return min(self.lost + bool(is_lost), 2)

    @classmethod
    def of(cls, run: Run) -> Told:
        return cls(run.state, run.delivery_count, run.until_ms, run.epoch, run.client, run.lost)


class PopLimits(NamedTuple):
    """Messages of a queue that may be in flight, and bitmaps of it with which nothing new is delivered."""

    held: int
    bitmaps: int
    #: Offsets of one bitmap.
    block: int = pop_blocks.BLOCK


@dataclass(eq=False)
class PopModel:
    """A queue as one group pops it: `next` was never handed out, and what is before `start` is none of its.

    `group_hashes` are those of its messages by offset, if its topic is FIFO.
    """

    messages: dict[int, Told] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    next: int = 0
    start: int = 0
    group_hashes: Sequence[int] = ()

    def copy(self) -> PopModel:
        return PopModel(self.messages.copy(), self.done.copy(), self.next, self.start, self.group_hashes)

    def begun_at(self, offset: int) -> PopModel:
        """Return the queue with nothing handed out from an offset on."""
        return PopModel(next=offset, start=offset, group_hashes=self.group_hashes)

    def _group_hash(self, at: int) -> int:
        return self.group_hashes[at] if self.group_hashes else 0

    def _group_hashes_of(self, run: Run) -> set[int]:
        return set(self.group_hashes[run.first : run.end]) if self.group_hashes else {0}

    @property
    def held(self) -> int:
        """Number of messages in flight."""
        return len([told for told in self.messages.values() if told.state is RunState.OUT])

    @property
    def bitmaps(self) -> int:
        """Number of different states, counted in each block of offsets."""
        return len({(at // pop_blocks.BLOCK, told) for at, told in self.messages.items()})

    @property
    def _due_ms(self) -> dict[int, int]:
        """When each lane may be handed out: its oldest message has waited, and nobody has any of it."""
        found: dict[int, int] = {}
        for at in sorted(self.messages):
            group_hash, told = self._group_hash(at) or -1 - at, self.messages[at]
            if group_hash not in found or (told.state is RunState.OUT and told.until_ms > found[group_hash]):
                found[group_hash] = told.until_ms
        return found

    def is_full(self, limits: PopLimits) -> bool:
        """Return whether a take may bring nothing though messages are there."""
        return self.held >= limits.held or self.bitmaps >= limits.bitmaps

    def check(self, queue: PopQueue | None, end: int, limits: PopLimits) -> None:
        """Compare the queue of a broker; `end` is where messages end."""
        if queue is None:
            assert not self.messages
            return
        at, before, found = queue.done, None, dict[int, Told]()
        for run in queue.runs:
            assert at == run.first < run.end
            assert before is None or not run.continues(before)
            before, at = run, run.end
            if run.state is not RunState.DONE:
                found.update(dict.fromkeys(range(run.first, run.end), Told.of(run)))
                assert {run.group_hash} == self._group_hashes_of(run)
        assert at == queue.next == self.next
        assert found == self.messages
        assert queue.done == min(self.messages, default=self.next)
        assert queue.held == self.held <= limits.held
        assert len(queue) == self.bitmaps <= limits.bitmaps + limits.held + pop_blocks.BLOCK
        assert queue.due_ms == min(self._due_ms.values(), default=NEVER)
        assert queue.unsettled_before(end) == len(self.messages) + max(0, end - self.next)
        middle = (queue.done + end) // 2
        assert queue.unsettled_before(middle) == sum(at < middle for at in self.messages) + max(0, middle - self.next)

    # ---- what becomes of messages --------------------------------------------------------------------

    def drop_before(self, first: int) -> int:
        """Forget what is deleted; return how many of these messages nobody had settled."""
        missed = sum(at not in self.done for at in range(self.start, first))
        if first > self.start:
            self.messages = {at: told for at, told in self.messages.items() if at >= first}
            self.done.update(range(self.start, first))
            self.next = max(self.next, first)
        return missed

    def free(self, gone: Leave) -> None:
        """A consumer is gone."""
        for at, told in self.messages.items():
            if told.client == gone.client:
                lost = min(told.lost + gone.died, 2)
                self.messages[at] = Told(RunState.FREE, told.delivery_count, 0, told.epoch, "", lost)

    def take(
        self, step: PopStep, wanted: Take, now_ms: int, epoch: int, fact: PopMoved | None, limits: PopLimits
    ) -> None:
        """Learn what was handed out; nothing may be kept back unless the queue is full, or what was lost goes alone."""
        if step.makes_room:
            assert not step.runs
            return
        full = not step.runs and (wanted.redeliver_only or self.is_full(limits))
        if self.group_hashes:
            self._take_in_order(step, wanted, now_ms, epoch, fact, full)
            return
        end, due = step.stored[1], [at for at, told in self.messages.items() if told.until_ms <= now_ms]
        if wanted.ahead and any(self.messages[at].delivery_count for at in due):
            assert not step.runs, "somebody who has not asked for it gets what failed, or others while it waits"
            return
        # A fact has the steps of a whole request: what is passed over in it may be the doing of a later one.
        may_pass = not wanted.redeliver_only and not any(run.delivery_count > 1 for run in step.runs)
        passed = may_pass and self._pass_unwanted(step.key, wanted, fact)
        is_there = due or (self.next < end and not wanted.redeliver_only)
        assert step.runs or full or passed or not is_there, "messages are there, and nobody gets them"
        assert sum(run.count for run in step.runs) <= wanted.most
        self._check_tries(step)
        for run in step.runs:
            told = Told(RunState.OUT, run.delivery_count, wanted.until_ms, epoch, wanted.client, run.lost)
            assert told == Told.of(run)
            for at in range(run.first, run.end):
                before = self.messages.get(at)
                if before is None:
                    assert at == self.next < end, "it is settled, or nobody has sent it"
                    self.next += 1
                else:
                    assert before.until_ms <= now_ms, "it is in two hands"
                assert run.delivery_count == (before.delivery_count if before else 0) + 1
                assert run.lost == (before.losses(wanted) if before is not None else 0)
                self.messages[at] = told

    @staticmethod
    def _check_tries(step: PopStep) -> None:
        delivery_count = {run.delivery_count for run in step.runs}
        assert delivery_count <= {1} or 1 not in delivery_count, "those that failed may take others along"
        is_suspect = any(run.lost for run in step.runs)
        assert (max(delivery_count, default=0) <= 3 and not is_suspect) or sum(run.count for run in step.runs) == 1

    def _take_in_order(
        self, step: PopStep, wanted: Take, now_ms: int, epoch: int, fact: PopMoved | None, full: bool
    ) -> None:
        """Do the same where there are lanes: of each the oldest messages go out, while nobody has others of it."""
        due_ms, ahead = self._due_ms, wanted.group_hashes or ()
        behind = min(step.stored[1], max((stretch.end for stretch in ahead), default=0))
        new = not wanted.redeliver_only and {*self.group_hashes[self.next : behind]} - due_ms.keys()
        is_there = new or min(due_ms.values(), default=NEVER) <= now_ms
        self._check_tries(step)
        assert sum(run.count for run in step.runs) <= wanted.most
        is_first = not any(run.delivery_count > 1 for run in step.runs)
        passed = not wanted.redeliver_only and is_first and self._pass_unwanted(step.key, wanted, fact)
        taken = dict[int, Told]()
        for run in step.runs:
            told = Told(RunState.OUT, run.delivery_count, wanted.until_ms, epoch, wanted.client, run.lost)
            assert told == Told.of(run)
            if run.first >= self.next:
                passed = self._pass_group_hashes(step.key, taken, fact) or passed
            assert {run.group_hash} == self._group_hashes_of(run)
            assert due_ms.get(run.group_hash, 0) <= now_ms, "two hands have messages of one lane, or it waits"
            older = [
                at
                for at in self.messages
                if at < run.first and self.group_hashes[at] == run.group_hash and at not in taken
            ]
            assert not older, "an older message of the lane is left"
            for at in range(run.first, run.end):
                before = self.messages.get(at)
                assert run.delivery_count == (before.delivery_count if before else 0) + 1
                assert run.lost == (before.losses(wanted) if before is not None else 0)
                if before is None:
                    assert at == self.next < step.stored[1], "it is settled, or nobody has sent it"
                    self.next += 1
                self.messages[at] = taken[at] = told
        # It may be a later step of the request that passed over the last of them, as this one has the lane.
        passed = self._pass_group_hashes(step.key, (), fact) or passed
        assert step.runs or full or passed or not is_there, "messages are there, and nobody gets them"
        group_hashes = {self.group_hashes[at] for at in taken}
        for at, told in self.messages.items() if group_hashes else ():
            if told.epoch and at not in taken and self.group_hashes[at] in group_hashes:
                self.messages[at] = Told(RunState.FREE, told.delivery_count, told.until_ms, 0, "", told.losses(wanted))

    def _pass_group_hashes(self, key: PopKey, taken: Collection[int], fact: PopMoved | None) -> bool:
        """Learn from the fact which messages were passed over, and wait for older ones of their lanes."""
        is_any = False
        for queue in fact.queues if fact is not None else ():
            for run in queue.runs if queue.queue_id == key.queue_id else ():
                if run.first == self.next and run.state is RunState.FREE and not run.delivery_count:
                    assert [at for at in self.messages if self._group_hash(at) == run.group_hash and at not in taken]
                    for at in range(run.first, run.end):
                        self.messages[at] = Told.of(run)
                    self.next, is_any = run.end, True
        return is_any

    def _pass_unwanted(self, key: PopKey, wanted: Take, fact: PopMoved | None) -> bool:
        """Learn from the fact whether messages that nobody wants were passed over."""
        for queue in fact.queues if fact is not None else ():
            for run in queue.runs:
                is_new = run.state is RunState.DONE and run.first == self.next
                if is_new and queue.queue_id == key.queue_id and run.end == wanted.unwanted[1]:
                    assert wanted.unwanted[0] <= run.first
                    self.done.update(range(run.first, run.end))
                    self.next = run.end
                    return True
        return False

    def settle(self, step: PopStep, settle: Settle) -> None:
        """Learn what became of messages, and that only those have expired that others have got."""
        is_known = any(told.epoch == settle.epoch for told in self.messages.values())
        if is_known and settle.spans[-1][1] > self.next:  # cut off the log, or of before a reset
            assert isinstance(step.error, InvalidArgument)
            return
        assert step.error is None
        expired = {at for first, end in step.expired for at in range(first, end) if at >= self.start}
        for first, end in settle.spans:
            told = {at for at in expired if first <= at < end}
            if self.group_hashes and not is_known and told == {*range(max(first, self.start), end)}:
                continue  # only a later step of this request has passed over its last messages
            wrong = {*range(first, end)} if end > self.next else self._answer(first, end, settle)
            # What is before the start is of before a reset: nobody knows what became of it.
            assert {at for at in wrong if at >= self.start} == told
        self._give_up_following([span for span in settle.spans if span[1] <= self.next], settle)

    def _give_up_following(self, spans: Sequence[tuple[int, int]], settle: Settle) -> None:
        """Void what is behind messages of a lane that are given up, in the same hand."""
        if not self.group_hashes or settle.outcome not in (PopOutcome.FREE, PopOutcome.RETURN):
            return
        given = [at for first, end in spans for at in range(first, end) if self._is_given_up(at, settle)]
        for at, told in self.messages.items():
            is_behind = any(other < at and self._group_hash(other) == self._group_hash(at) for other in given)
            if is_behind and at not in given and told.state is RunState.OUT and told.epoch == settle.epoch:
                self.messages[at] = Told(RunState.FREE, told.delivery_count - 1, 0, 0, "", told.lost)

    def _is_given_up(self, at: int, settle: Settle) -> bool:
        told = self.messages.get(at)
        return told is not None and told.epoch == settle.epoch and told.state is RunState.FREE

    def _answer(self, first: int, end: int, settle: Settle) -> set[int]:
        """Take an answer in, and return the messages that are not those of its handle any more."""
        expired = set[int]()
        for at in range(first, end):
            told = self.messages.get(at)
            if told is None:
                assert at in self.done or at < self.start
                if settle.outcome is PopOutcome.EXTEND:
                    expired.add(at)  # it is done
                continue
            is_out = told.state is RunState.OUT
            if told.epoch != settle.epoch:
                expired.add(at)
            elif settle.outcome is PopOutcome.DONE:
                del self.messages[at]
                self.done.add(at)
            elif settle.outcome is PopOutcome.FREE:
                self.messages[at] = told._replace(state=RunState.FREE, until_ms=settle.until_ms, client="", lost=0)
            elif settle.outcome is PopOutcome.RETURN and is_out:
                self.messages[at] = Told(RunState.FREE, told.delivery_count - 1, 0, told.epoch, "", told.lost)
            elif settle.outcome is PopOutcome.EXTEND and is_out:
                self.messages[at] = told._replace(until_ms=settle.until_ms)
            else:
                expired.add(at)
        return expired
