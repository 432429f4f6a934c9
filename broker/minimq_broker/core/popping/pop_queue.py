"""A queue popped by a group: which consumer has which message, until when, and how often it was delivered.

It is a list of runs between the settled messages and those that were never delivered, so its size depends on the number
of deliveries, not of messages. Every decision is a list of runs to `put`. The fact in the log is the same list, so each
replica that applies it gets the same queue.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from operator import attrgetter

import msgspec

from minimq_broker.core.popping import pop_lanes
from minimq_broker.core.popping.pop_runs import (
    MAX_CLAIMED_RUNS,
    MAX_HELD,
    MAX_LOST,
    MAX_RUNS,
    MAX_TRIES,
    NEVER,
    Claim,
    Leave,
    PopOutcome,
    Reopen,
    Run,
    RunState,
    Settle,
    Take,
    merged_runs,
)
from minimq_common.errors import Fenced, InvalidArgument, OffsetOutOfRange, StoreError, SystemBusy

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE
#: From this many tries on, a message is redelivered alone, so that one that kills every consumer affects no others.
_ALONE_FROM_TRIES = 2
#: Before that, failed messages are redelivered in smaller batches: of `most` divided by this.
_RETRY_DIVISOR = 8
_end_of, _tries_of = attrgetter("end"), attrgetter("tries")


class PopRow(msgspec.Struct, frozen=True, array_like=True):
    """A popped queue in the checkpoint."""

    done: int
    runs: list[Run]


class PopQueue:
    """One queue popped by one group. Only `put` and `drop_before` change it; all other methods only decide."""

    __slots__ = ("_runs", "done", "due_ms", "has_lanes", "has_lost", "held")

    def __init__(self, done: int = 0, runs: Iterable[Run] = ()) -> None:
        self.done = done
        self._runs: list[Run] = []
        self.held = 0
        self.due_ms = NEVER
        self.has_lanes = self.has_lost = False
        for run in runs:
            self.put(run)
        if self.has_lanes:
            self.refresh_due()

    @property
    def next(self) -> int:
        """The first offset that was never delivered."""
        return self._runs[-1].end if self._runs else self.done

    @property
    def runs(self) -> list[Run]:
        """A copy of the runs between `done` and `next`, ascending. Any thread may read this."""
        return self._runs.copy()

    def __len__(self) -> int:
        return len(self._runs)

    def copy(self) -> PopQueue:
        """Return an independent copy, to try changes on."""
        twin = PopQueue(self.done)
        twin._runs, twin.held, twin.due_ms = self._runs.copy(), self.held, self.due_ms
        twin.has_lanes, twin.has_lost = self.has_lanes, self.has_lost
        return twin

    def row(self) -> PopRow:
        """Return its row in the checkpoint."""
        return PopRow(self.done, self._runs.copy())

    # ---- changes -----------------------------------------------------------------------------------

    def put(self, run: Run) -> None:
        """Set the state of the messages of a run."""
        runs, first, end = self._runs, run.first, run.end
        following = runs[-1].end if runs else self.done
        if not (first < end and self.done <= first <= following):
            self._go_back(run)
            return
        self.has_lost |= run.lost > 0
        if run.lane:
            self.has_lanes = True
        elif run.state is not DONE and run.until_ms < self.due_ms:
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

    def _go_back(self, run: Run) -> None:
        first, end = run.first, run.end
        if not (run.state is FREE and first < end <= self.done):
            raise StoreError(f"messages {first} to {end} were popped, but the queue has {self.done} to {self.next}")
        rest = [Run(end, self.done, DONE)] if end < self.done else []
        self._runs[:1] = merged_runs([run, *rest, *self._runs[:1]])
        self.done = first  # after the runs: other threads read both without a lock
        self.due_ms = min(self.due_ms, run.until_ms)

    def _extend(self, run: Run) -> None:
        runs = self._runs
        if not runs and run.state is DONE:
            self.done = run.end
        elif runs and run.continues(runs[-1]):
            runs[-1:] = merged_runs([runs[-1], run])
        else:
            runs.append(run)

    def _replace(self, i: int, run: Run) -> bool:
        runs, old = self._runs, self._runs[i]
        if old.first != run.first:
            return False
        if not i and run.state is DONE and run.end < old.end:  # the common case: the oldest are settled
            self.held -= run.count if old.state is OUT else 0
            self.done = run.end  # before the runs: other threads read both without a lock
            runs[0] = old.part(run.end, old.end)
            return True
        if old.end != run.end:
            return False
        if (i and run.continues(runs[i - 1])) or (i + 1 < len(runs) and runs[i + 1].continues(run)):
            return False
        self.held -= run.count if old.state is OUT else 0
        if i or run.state is not DONE:
            runs[i] = run
        else:
            self.done = run.end  # before the runs, as above
            del runs[0]
        return True

    def _cut(self, i: int, first: int, end: int) -> tuple[int, list[Run]]:
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
        """Drop the messages before an offset, which were deleted from the log. Idempotent."""
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
        """Return when the next redelivery is due, in ms since 1970, or `NEVER`. Any thread may call this."""
        runs = self._runs.copy()
        if self.has_lanes:
            return pop_lanes.earliest_ms(runs)
        return min((run.until_ms for run in runs if run.state is not DONE), default=NEVER)

    def refresh_due(self) -> None:
        """Recompute `due_ms` from all runs: after each change of a queue with lanes, else once that time has passed.

        Without lanes, `put` only lowers `due_ms`, so the message that was due then may have been delivered meanwhile.
        """
        self.due_ms = self.earliest_ms()

    # ---- decisions ---------------------------------------------------------------------------------

    def unsettled_before(self, offset: int) -> int:
        """Return how many messages before an offset are not settled. Any thread may call this."""
        done, every = self.done, self._runs.copy()
        runs = [run for run in every if run.first < offset and run.state is not DONE]
        following = every[-1].end if every else done
        return sum(min(run.end, offset) - run.first for run in runs) + max(0, offset - following)

    def take(self, wanted: Take, now_ms: int, readable_end: int, epoch: int) -> list[Run]:
        """Return the runs to deliver, failed messages first and alone; none if too many are in flight."""
        most = min(wanted.most, MAX_HELD - self.held)
        found: list[Run] = []
        if due := self._due(now_ms):
            if wanted.ahead and any(run.tries for run in due):
                return []
            found = self._again(due, wanted, most, epoch)
            most -= sum(run.count for run in found)
        if not found or not any(run.tries > 1 for run in found):
            self._begin(wanted, most, readable_end, epoch, found)
        return found + pop_lanes.voided(self._runs, found, wanted.losses) if self.has_lanes else found

    def _begin(self, wanted: Take, most: int, readable_end: int, epoch: int, found: list[Run]) -> None:
        if wanted.redeliver_only or len(self._runs) + len(found) >= MAX_RUNS:
            return
        again, first = len(found), self.next
        if wanted.unwanted[0] <= first < wanted.unwanted[1] <= readable_end:
            found.append(Run(first, wanted.unwanted[1], DONE))
            first = wanted.unwanted[1]
        end = readable_end if wanted.lanes is not None else min(first + most, readable_end)
        if end <= first:
            return
        run = Run(first, end, OUT, 1, wanted.until_ms, epoch, wanted.client)
        if wanted.lanes is None:
            found.append(run)
            return
        busy, pieces = pop_lanes.busy_lanes(self._runs, found[:again]), MAX_RUNS - len(self._runs) - len(found)
        found += pop_lanes.fresh_runs(wanted.lanes, busy, first, end, most, pieces, run)

    def _due(self, now_ms: int) -> list[Run]:
        if self.has_lanes:
            return pop_lanes.due_runs(self._runs, now_ms)
        if now_ms < self.due_ms:
            return []
        return [run for run in self._runs if run.state is not DONE and run.until_ms <= now_ms]

    def _again(self, due: Sequence[Run], wanted: Take, most: int, epoch: int) -> list[Run]:
        failed = pop_lanes.leading(due, 1, _ALONE_FROM_TRIES - 1, wanted.losses)
        if found := self._pieces(failed, max(1, wanted.most // _RETRY_DIVISOR), most, wanted, epoch):
            return found
        suspects = sorted(
            (run for run in pop_lanes.heads(due) if run.tries >= _ALONE_FROM_TRIES or wanted.losses(run)), key=_tries_of
        )
        if found := self._pieces(suspects, 1, most, wanted, epoch):
            return found
        return self._pieces(pop_lanes.leading(due, 0, 0, wanted.losses), wanted.most, most, wanted, epoch)

    def _pieces(self, runs: Iterable[Run], room: int, most: int, wanted: Take, epoch: int) -> list[Run]:
        found: list[Run] = []
        shut = set[int]()  # lanes with messages that are not delivered now
        for run in runs:
            if run.lane in shut:
                continue
            # Expired deliveries already count as held, so `most` does not limit them.
            count = min(run.count, room, run.count if run.state is OUT else most)
            if count < run.count and (wanted.redeliver_only or len(self._runs) >= 2 * MAX_RUNS):
                # Deliver only whole runs, which adds none; but one message of the first run, or nothing might move.
                count = min(count, 1) if run is self._runs[0] else 0
            if count > 0:
                tries = min(run.tries + 1, MAX_TRIES)
                end = run.first + count
                lost = wanted.losses(run)
                found.append(Run(run.first, end, OUT, tries, wanted.until_ms, epoch, wanted.client, run.lane, lost))
                room -= count
                most -= count if run.state is not OUT else 0
            if count < run.count and run.lane:
                shut.add(run.lane)
            if not room:
                break
        return found

    def is_with(self, client: str, now_ms: int, *, lost_only: bool) -> bool:
        """Return whether a consumer has messages; with `lost_only`, messages with which another consumer died."""
        self.has_lost = any(run.lost for run in self._runs)
        return any(
            run.client == client and run.state is OUT and run.until_ms > now_ms and (run.lost or not lost_only)
            for run in self._runs
        )

    def has_expired_since(self, asked_ms: int, now_ms: int) -> bool:
        """Return whether the delivery of some message expired between `asked_ms` and now."""
        if asked_ms >= now_ms or (now_ms < self.due_ms and not self.has_lanes):
            return False
        return any(run.state is OUT and asked_ms < run.until_ms <= now_ms for run in self._runs)

    @property
    def takes_new(self) -> bool:
        """True if new messages may be delivered. Any thread may read this."""
        return len(self._runs) < MAX_RUNS and self.held < MAX_HELD

    def settle(self, settled: Settle) -> tuple[list[Run], list[tuple[int, int]], SystemBusy | None]:
        """Return the runs that result from a settle, the messages that were redelivered meanwhile, and a refusal.

        The first messages that would add too many runs are refused, and all after them.

        A late settle counts unless the messages were redelivered; a repeated one changes nothing. Extending settled
        messages counts as redelivered, so that a consumer that still works on them learns of it.

        If no run has the epoch of the settle, for example after a reset, all its messages count as redelivered.
        """
        found: list[Run] = []
        expired: list[tuple[int, int]] = []
        before, following = 0, self._runs[-1].end if self._runs else self.done
        for first, end in settled.spans:
            is_past = end > following
            if is_past and before <= first < end and not self._has_epoch(settled.epoch):
                before = end
                expired.append((first, end))
                continue
            if not before <= first < end or is_past:
                raise InvalidArgument(
                    f"messages {first} to {end - 1} cannot be settled: spans must ascend, and the messages that were "
                    f"delivered end at {following - 1}"
                )
            before = end
            if first < self.done and settled.outcome is PopOutcome.EXTEND:
                expired.append((first, min(end, self.done)))
            self._settle_span(settled, max(first, self.done), end, found, expired)
        most, busy = 2 * MAX_RUNS if settled.may_divide else 0, None
        if len(self._runs) + 2 * len(found) > most and (count := self._fitting(found, most)) < len(found):
            left = sum(run.count for run in found[count:])
            busy = SystemBusy(
                f"{left:,} messages from offset {found[count].first} on are not settled: the queue, or all queues of "
                "the broker, would have too many ranges of settled and unsettled messages: settle older messages first",
                limit="pop-runs",
            )
            found = found[:count]
        if self.has_lanes and settled.outcome in (PopOutcome.FREE, PopOutcome.RETURN):
            found += pop_lanes.following(self._runs, found, settled.epoch)
        return found, expired, busy

    def claim(self, claim: Claim) -> list[Run]:
        """Return the runs that result from a claim. Raises `Fenced` if one of its messages is settled or delivered."""
        _check_ascending(claim.spans)
        found: list[Run] = []
        following = self.next
        for first, end in claim.spans:
            if end > claim.end:
                raise InvalidArgument(f"messages {first} to {end - 1} are not stored: the queue ends at {claim.end}")
            if first < self.done or not self._is_free(first, end):
                raise Fenced(f"messages {first} to {end - 1} are settled already, or delivered: nothing is stored")
            if first > following:
                found.append(Run(following, first, FREE))
            found.append(Run(first, end, DONE))
            following = max(following, end)
        if len(self._runs) + 2 * len(found) > MAX_CLAIMED_RUNS:
            raise SystemBusy(
                f"settled and open messages of the queue would form more than {MAX_CLAIMED_RUNS:,} ranges: settle "
                "older ones first",
                limit="pop-runs",
            )
        return found

    def _is_free(self, first: int, end: int) -> bool:
        i = bisect_right(self._runs, first, key=_end_of)
        while i < len(self._runs) and self._runs[i].first < end:
            if self._runs[i].state is not FREE:
                return False
            i += 1
        return True

    def reopen(self, wanted: Reopen, stored: tuple[int, int]) -> list[Run]:
        """Return the runs that make settled messages deliverable again; `stored` is first and end offset of the queue.

        Raises `OffsetOutOfRange`, and `SystemBusy` if the queue would get more runs than a settle may make.
        """
        _check_ascending(wanted.spans)
        found: list[Run] = []
        for first, end in wanted.spans:
            if first < stored[0] or end > stored[1]:
                raise OffsetOutOfRange(
                    f"messages {first} to {end - 1} cannot be delivered again: those from {stored[0]} to "
                    f"{stored[1] - 1} are stored"
                )
            if first < self.done:
                found.append(Run(first, min(end, self.done), FREE))
            i = bisect_right(self._runs, first, key=_end_of)
            while i < len(self._runs) and (run := self._runs[i]).first < end:
                if run.state is DONE:
                    found.append(Run(max(run.first, first), min(run.end, end), FREE))
                i += 1
        if found and len(self._runs) + 2 * len(found) > (2 * MAX_RUNS if wanted.may_divide else 0):
            raise SystemBusy(
                "the queue, or all queues of the broker, would have too many ranges of settled and unsettled messages: "
                "first consume those that already wait for redelivery",
                limit="pop-runs",
            )
        return found

    def settled_spans(self) -> list[tuple[int, int]]:
        """Return first and end offset of each span of settled messages. Any thread may call this."""
        done, runs = self.done, self.runs
        return [(0, done)] * bool(done) + [(run.first, run.end) for run in runs if run.state is DONE]

    def has_all(self, settled: Settle) -> bool:
        """Return whether all messages of a settle are unsettled and were not redelivered since."""
        return all(self._has_span(first, end, settled.epoch) for first, end in settled.spans)

    def _has_span(self, first: int, end: int, epoch: int) -> bool:
        if first < self.done or end > self.next:
            return False
        i = bisect_right(self._runs, first, key=_end_of)
        while first < end:
            run = self._runs[i]
            if run.state is DONE or run.epoch != epoch:
                return False
            first, i = run.end, i + 1
        return True

    def _has_epoch(self, epoch: int) -> bool:
        return any(run.epoch == epoch for run in self._runs)

    def _fitting(self, found: list[Run], limit: int) -> int:
        before = len(self._runs)
        trial, fitting = self.copy(), 0
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

    def freed(self, gone: Leave) -> list[Run]:
        """Return runs that release the messages of a consumer that is gone."""
        client, died = gone
        return [
            Run(run.first, run.end, FREE, run.tries, 0, run.epoch, lane=run.lane, lost=min(run.lost + died, MAX_LOST))
            for run in self._runs
            if run.client == client and run.state is OUT
        ]


def _check_ascending(spans: Iterable[tuple[int, int]]) -> None:
    before = 0
    for first, end in spans:
        if not before <= first < end:
            raise InvalidArgument(f"messages {first} to {end - 1} are out of order: spans must ascend without overlaps")
        before = end


def _after(run: Run, settled: Settle, first: int, end: int) -> Run | None:
    if run.epoch != settled.epoch:
        return None
    match settled.outcome:
        case PopOutcome.DONE:
            return Run(first, end, DONE)
        case PopOutcome.FREE:
            return Run(first, end, FREE, run.tries, settled.until_ms, run.epoch, lane=run.lane)
        case PopOutcome.RETURN if run.state is OUT:
            return Run(first, end, FREE, run.tries - 1, 0, run.epoch, lane=run.lane, lost=run.lost)
        case PopOutcome.EXTEND if run.state is OUT:
            return Run(first, end, OUT, run.tries, settled.until_ms, run.epoch, run.client, run.lane, run.lost)
    return None
