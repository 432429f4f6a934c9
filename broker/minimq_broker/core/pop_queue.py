"""A queue whose messages a group takes one by one: who has them, how often they were handed out, and until when.

It is a list of runs between what is done and what was never handed out, so that it costs by hand-outs and not by
messages. Every decision is a row of runs that are put into it: the fact in the log has the same, and whoever applies it
has the same queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from enum import IntEnum
from operator import attrgetter
from typing import NamedTuple

import msgspec

from minimq_broker.core.pop_runs import MAX_HELD, MAX_RUNS, MAX_TRIES, Run, RunState, merged_runs
from minimq_common.errors import InvalidArgument, StoreError, SystemBusy

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE
#: A time that does not come, in ms.
NEVER = (1 << 63) - 1
#: A message that has failed once is redelivered with few others, and one that has failed this often alone: one that
#: kills every consumer dies alone.
_ALONE_FROM = 3
_FEWER = 8
#: When it is tried again what would have made too many pieces, in seconds.
_COME_BACK_S = 1.0
_end_of, _tries_of = attrgetter("end"), attrgetter("tries")


class PopOutcome(IntEnum):
    """The end of messages that somebody has."""

    #: They are consumed.
    DONE = 0
    #: They failed: others may have them, after a time.
    FREE = 1
    #: Whoever has them keeps them for longer.
    EXTEND = 2
    #: They were not looked at: others may have them, and this was no try.
    RETURN = 3


class Take(NamedTuple):
    """A consumer wants messages.

    Attributes:
        client: who; "" if what is handed out outlives its consumer.
        most: number of them.
        until_ms: until when it may keep them.
        unwanted: first offset of new messages that no consumer of the group wants, and the one behind: passed over.
        again_only: nothing is handed out for the first time: the broker has as many runs as it may.
        ahead: nobody has asked for them yet: nothing is handed out while some wait that have failed.
    """

    client: str
    most: int
    until_ms: int
    unwanted: tuple[int, int] = (0, 0)
    again_only: bool = False
    ahead: bool = False


class Settle(NamedTuple):
    """A consumer says what becomes of messages that it has.

    Attributes:
        epoch: of their handle.
        spans: first offset, and the one behind the last; ascending.
        outcome: what becomes of them.
        until_ms: until when they are kept, or not before when they are handed out again.
        may_divide: the queue may fall into more pieces.
    """

    epoch: int
    spans: Sequence[tuple[int, int]]
    outcome: PopOutcome
    until_ms: int = 0
    may_divide: bool = True


class PopRow(msgspec.Struct, frozen=True, array_like=True):
    """A popped queue in the checkpoint."""

    done: int
    runs: list[Run]


class PopQueue:
    """One queue as one group pops it. Changed by `put`, `drop_before` alone; all else decides.

    Args:
        done: offset before which everything is settled.
        runs: what follows it, without a gap.

    Attributes:
        held: number of messages that consumers have.
        due_ms: nothing that was handed out before may be handed out again sooner.
    """

    __slots__ = ("_runs", "done", "due_ms", "held")

    def __init__(self, done: int = 0, runs: Iterable[Run] = ()) -> None:
        self.done = done
        self._runs: list[Run] = []
        self.held = 0
        self.due_ms = NEVER
        for run in runs:
            self.put(run)

    @property
    def next(self) -> int:
        """The first offset that was never handed out."""
        return self._runs[-1].end if self._runs else self.done

    @property
    def runs(self) -> list[Run]:
        """The runs between `done` and `next`, ascending. Any thread may ask: it is a copy."""
        return self._runs.copy()

    def __len__(self) -> int:
        return len(self._runs)

    def copy(self, now_ms: int) -> PopQueue:
        """Return a queue of which this one knows nothing: decisions of a commit that may fail are tried on it."""
        if now_ms >= self.due_ms:
            self.due_ms = self.earliest_ms()
        twin = PopQueue(self.done)
        twin._runs, twin.held, twin.due_ms = self._runs.copy(), self.held, self.due_ms
        return twin

    def row(self) -> PopRow:
        """Return it as it is saved."""
        return PopRow(self.done, self._runs.copy())

    # ---- changing ----------------------------------------------------------------------------------

    def put(self, run: Run) -> None:
        """Make it so that of these messages this is true.

        Raises:
            StoreError: they are done, or there is a gap before them: it is none of this queue.
        """
        runs, first, end, following = self._runs, run.first, run.end, self.next
        if not (first < end and self.done <= first <= following):
            raise StoreError(f"messages {first} to {end} were popped, but the queue has {self.done} to {following}")
        if run.state is not DONE and run.until_ms < self.due_ms:
            self.due_ms = run.until_ms
        if run.state is OUT:
            self.held += end - first
        if first == following:
            self._extend(run)
            return
        i = bisect_right(runs, first, key=_end_of)
        if self._replace(i, run):
            return
        j, rest = self._cut(i, first, end)
        new = [*rest[:1], run, *rest[1:]] if rest and rest[0].first < first else [run, *rest]
        if i:
            i -= 1
            new.insert(0, runs[i])
        if j < len(runs):
            new.append(runs[j])
            j += 1
        runs[i:j] = merged_runs(new)
        if runs[0].state is DONE:
            self.done = runs[0].end
            del runs[0]

    def _extend(self, run: Run) -> None:
        """Add messages that nobody has had."""
        runs = self._runs
        if not runs and run.state is DONE:
            self.done = run.end
        elif runs and run.continues(runs[-1]):
            runs[-1:] = merged_runs([runs[-1], run])
        else:
            runs.append(run)

    def _replace(self, i: int, run: Run) -> bool:
        """Put a run in the place of one of the same messages, as most answers do; return False when it takes more."""
        runs, old = self._runs, self._runs[i]
        if old.first != run.first or old.end != run.end:
            return False
        if (i and run.continues(runs[i - 1])) or (i + 1 < len(runs) and runs[i + 1].continues(run)):
            return False
        self.held -= run.count if old.state is OUT else 0
        if i or run.state is not DONE:
            runs[i] = run
        else:
            self.done = run.end  # first: other threads look
            del runs[0]
        return True

    def _cut(self, i: int, first: int, end: int) -> tuple[int, list[Run]]:
        """Return the index behind the runs that have some of these messages, and what they have besides."""
        runs, rest = self._runs, list[Run]()
        while i < len(runs) and runs[i].first < end:
            old = runs[i]
            if old.state is OUT:
                self.held -= min(old.end, end) - max(old.first, first)
            if old.first < first:
                rest.append(old.part(old.first, first))
            if old.end > end:
                rest.append(old.part(end, old.end))
            i += 1
        return i, rest

    def drop_before(self, offset: int) -> None:
        """Forget what is before an offset: it is deleted. Nothing is forgotten twice."""
        if offset <= self.done:
            return
        runs = self._runs
        while runs and runs[0].first < offset:
            old = runs.pop(0)
            if old.state is OUT:
                self.held -= min(old.end, offset) - old.first
            if old.end > offset:
                runs.insert(0, old.part(offset, old.end))
                break
        self.done = offset
        while runs and runs[0].state is DONE:
            self.done = runs.pop(0).end

    def earliest_ms(self) -> int:
        """Return when something may be handed out again, in ms since 1970; far away when nothing is. Any thread."""
        return min((run.until_ms for run in self._runs.copy() if run.state is not DONE), default=NEVER)

    # ---- deciding ----------------------------------------------------------------------------------

    def unsettled_before(self, offset: int) -> int:
        """Return how many messages before an offset nobody has settled. Any thread may ask."""
        done, every = self.done, self._runs.copy()
        runs = [run for run in every if run.first < offset and run.state is not DONE]
        following = every[-1].end if every else done
        return sum(min(run.end, offset) - run.first for run in runs) + max(0, offset - following)

    def take(self, wanted: Take, now_ms: int, readable_end: int, epoch: int) -> list[Run]:
        """Return the runs that a consumer gets; none when there is nothing, or too much in hand.

        What failed before comes first, and apart from what did not: whatever made it fail shall not take others along.

        Args:
            wanted: by the consumer.
            now_ms: time of day in ms since 1970.
            readable_end: where the queue ends for readers.
            epoch: of the handle.
        """
        most = min(wanted.most, MAX_HELD - self.held)
        found: list[Run] = []
        if now_ms >= self.due_ms:
            found = self._again(wanted, most, now_ms, epoch)
            if any(run.tries > 1 for run in found):
                return found
            most -= sum(run.count for run in found)
        if wanted.again_only or len(self._runs) + len(found) >= MAX_RUNS:
            return found
        first = self.next
        if wanted.unwanted[0] <= first < wanted.unwanted[1] <= readable_end:
            found.append(Run(first, wanted.unwanted[1], DONE))
            first = wanted.unwanted[1]
        end = min(first + most, readable_end)
        if end > first:
            found.append(Run(first, end, OUT, 1, wanted.until_ms, epoch, wanted.client))
        return found

    def _again(self, wanted: Take, most: int, now_ms: int, epoch: int) -> list[Run]:
        """Return runs to redeliver: those that failed less often first, otherwise undelivered ones."""
        due = [run for run in self._runs if run.state is not DONE and run.until_ms <= now_ms]
        failed = [run for run in due if 0 < run.tries < _ALONE_FROM]
        if found := self._pieces(failed, max(1, wanted.most // _FEWER), most, wanted, epoch):
            return found
        suspects = sorted((run for run in due if run.tries >= _ALONE_FROM), key=_tries_of)
        if found := self._pieces(suspects, 1, most, wanted, epoch):
            return found
        return self._pieces([run for run in due if not run.tries], wanted.most, most, wanted, epoch)

    def _pieces(self, runs: Iterable[Run], room: int, most: int, wanted: Take, epoch: int) -> list[Run]:
        """Return so many messages of these runs as there is room for, and as may be in hand besides."""
        found: list[Run] = []
        for run in runs:
            # One that somebody keeps too long is in hand already.
            count = min(run.count, room, run.count if run.state is OUT else most)
            if count < run.count and (wanted.again_only or len(self._runs) >= 2 * MAX_RUNS):
                # Whole runs do not add to the pieces. Of the first one a message comes, or all could stay.
                count = min(count, 1) if run is self._runs[0] else 0
            if count > 0:
                tries = min(run.tries + 1, MAX_TRIES)
                found.append(Run(run.first, run.first + count, OUT, tries, wanted.until_ms, epoch, wanted.client))
                room -= count
                most -= count if run.state is not OUT else 0
            if not room:
                break
        return found

    @property
    def takes_new(self) -> bool:
        """True if messages may be handed out for the first time. Any thread may ask."""
        return len(self._runs) < MAX_RUNS and self.held < MAX_HELD

    def settle(self, settled: Settle) -> tuple[list[Run], list[tuple[int, int]], SystemBusy | None]:
        """Return the runs that follow from an answer, the messages that somebody else has got since, and a refusal.

        The queue may not fall into too many pieces: what would make more of them, from some message on, is refused.

        An answer that comes late counts as long as nobody else has them; one that is repeated changes nothing. What is
        done is not kept: whoever works at it hears of it.

        An epoch by which nothing is out, such as one of before a reset, is late as well, whatever it names.

        Raises:
            InvalidArgument: it names messages that were never handed out, or not in order. Nothing of it is taken.
        """
        found: list[Run] = []
        expired: list[tuple[int, int]] = []
        before, following = 0, self.next
        for first, end in settled.spans:
            is_past = end > following
            if is_past and before <= first < end and not self._has_epoch(settled.epoch):
                before = end
                expired.append((first, end))
                continue
            if not before <= first < end or is_past:
                raise InvalidArgument(
                    f"messages {first} to {end - 1} cannot be settled: offsets are given in order, and those that were "
                    f"handed out end at {following - 1}"
                )
            before = end
            if first < self.done and settled.outcome is PopOutcome.EXTEND:
                expired.append((first, min(end, self.done)))
            self._settle_span(settled, max(first, self.done), end, found, expired)
        count = self._fitting(found, 2 * MAX_RUNS if settled.may_divide else 0)
        busy = None
        if count < len(found):
            left = sum(run.count for run in found[count:])
            busy = SystemBusy(
                f"{left:,} messages from offset {found[count].first} on are not settled: the queue, or all queues of "
                "the broker, would fall into too many pieces of settled and unsettled messages: settle older messages "
                "first",
                retry_after_s=_COME_BACK_S,
                limit="pop-runs",
            )
        return found[:count], expired, busy

    def _has_epoch(self, epoch: int) -> bool:
        return any(run.epoch == epoch for run in self._runs)

    def _fitting(self, found: list[Run], limit: int) -> int:
        """Return how many of these, from the first on, leave the queue in no more pieces than it may have, or has."""
        before = len(self._runs)
        if before + 2 * len(found) <= limit:
            return len(found)
        trial, fitting = self.copy(0), 0
        for number, run in enumerate(found, 1):
            trial.put(run)
            if len(trial) <= max(limit, before):
                fitting = number
        return fitting

    def _settle_span(
        self, settled: Settle, first: int, end: int, found: list[Run], expired: list[tuple[int, int]]
    ) -> None:
        runs = self._runs
        i = bisect_right(runs, first, key=_end_of)
        while first < end:
            run = runs[i]
            stop = min(run.end, end)
            after = _after(run, settled, first, stop) if run.state is not DONE else None
            if after is not None:
                found.append(after)
            elif run.state is not DONE or settled.outcome is PopOutcome.EXTEND:
                expired.append((first, stop))
            first = stop
            i += 1

    def freed(self, client: str) -> list[Run]:
        """Return what follows from the end of a consumer: others may have at once what it had."""
        return [
            Run(run.first, run.end, FREE, run.tries, 0, run.epoch)
            for run in self._runs
            if run.client == client and run.state is OUT
        ]


def _after(run: Run, settled: Settle, first: int, end: int) -> Run | None:
    """Return what becomes of some messages of a run; None when they are not those of this handle any more."""
    if run.epoch != settled.epoch:
        return None
    match settled.outcome:
        case PopOutcome.DONE:
            return Run(first, end, DONE)
        case PopOutcome.FREE:
            return Run(first, end, FREE, run.tries, settled.until_ms, run.epoch)
        case PopOutcome.RETURN if run.state is OUT:
            return Run(first, end, FREE, run.tries - 1, 0, run.epoch)
        case PopOutcome.EXTEND if run.state is OUT:
            return Run(first, end, OUT, run.tries, settled.until_ms, run.epoch, run.client)
    return None
