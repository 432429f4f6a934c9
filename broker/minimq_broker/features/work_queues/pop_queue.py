"""A queue popped by a group: which consumer has which message, until when, and how often it was delivered.

Every decision is a list of runs to `put`. The fact in the log is the same list, so each replica that applies it gets
the same queue. `PopBlocks` holds the unsettled messages.

A commit decides several requests before it applies their facts: it puts the runs of one to decide the next, and
undoes that. So the cost of a decision does not depend on how many messages wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from operator import attrgetter

from msgspec.structs import replace

from minimq_broker.features.work_queues import message_groups
from minimq_broker.features.work_queues.due_times import DueTimes
from minimq_broker.features.work_queues.pop_blocks import BLOCK, BlockRow, PopBlocks, spans_in
from minimq_broker.features.work_queues.pop_runs import (
    MAX_BITMAPS,
    MAX_DELIVERY_COUNT,
    MAX_HELD,
    MAX_LOST,
    NEVER,
    Leave,
    PopOutcome,
    Resolve,
    Run,
    RunState,
    Settle,
    Status,
    Take,
    merged_runs,
)
from minimq_common.errors import InvalidArgument, SystemBusy

FREE, OUT, DONE = RunState.FREE, RunState.OUT, RunState.DONE
#: From this delivery on, a message is redelivered alone, so that one that kills every consumer affects no others.
_ALONE_FROM_DELIVERY = 2
#: Before that, failed messages are redelivered in smaller batches: of `most` divided by this.
_RETRY_DIVISOR = 8
#: A take chooses from at least this many runs that are due, the longest due first.
_MIN_CHOICE = 64
_first_of, _delivery_count_of = attrgetter("first"), attrgetter("delivery_count")


class PopQueue:
    """One queue popped by one group. The writer's thread changes it and decides; others may look up.

    Args:
        start: the first message that the group gets.
        runs: the states of the messages from there on.
    """

    __slots__ = ("_blocks", "_due", "_former", "done", "due_ms", "next")

    def __init__(self, start: int = 0, runs: Iterable[Run] = ()) -> None:
        #: All messages before this one are settled; `refresh` moves it on.
        self.done = start
        #: The first message that was never delivered.
        self.next = start
        #: When the next redelivery is due, in ms since 1970, or `NEVER`; as of the latest `refresh`.
        self.due_ms = NEVER
        self._blocks = PopBlocks()
        self._due = DueTimes()
        #: What undoes the changes since `begin`: former runs, and the former `next`.
        self._former: list[tuple[int, int, list[Run], int]] | None = None
        for run in runs:
            self.put(run)
        self.refresh()

    def __len__(self) -> int:
        """Return the number of bitmaps, to which its memory is proportional."""
        return self._blocks.bitmaps

    @property
    def held(self) -> int:
        """The number of messages in flight."""
        return self._blocks.held

    @property
    def lost(self) -> int:
        """The number of messages with which a consumer died."""
        return self._blocks.lost

    @property
    def is_full(self) -> bool:
        """True if no new messages are delivered until some are settled. Any thread may read this."""
        return self._blocks.bitmaps >= MAX_BITMAPS

    @property
    def takes_new(self) -> bool:
        """True if new messages may be delivered. Any thread may read this."""
        return not self.is_full and self.held < MAX_HELD

    # ---- changes -----------------------------------------------------------------------------------

    def put(self, run: Run) -> None:
        """Set the state of messages. Ignores a run that no decision leads to."""
        first, end = run.first, run.end
        if not first < end or first > self.next or (first < self.done and run.state is not FREE):
            return
        if self._former is not None:
            self._note(first, end)
        self._blocks.put(first, end, None if run.state is DONE else run.status, run.group_hash)
        self.done, self.next = min(self.done, first), max(self.next, end)

    def drop_before(self, offset: int) -> None:
        """Drop the messages before an offset, which were deleted from the log. Idempotent."""
        if offset > self.done:
            if self._former is not None:
                self._note(self.done, offset)
            self._blocks.put(self.done, offset, None)
            self.next = max(self.next, offset)
            self.done = offset

    def refresh(self) -> set[int]:
        """Update `done` and `due_ms` after changes. Return the numbers of the blocks changed since the last call."""
        blocks, due = self._blocks, self._due
        self.done = min(blocks.first, self.next)
        if blocks.dirty:
            for unit, due_ms in blocks.dirty.items():
                due.set(unit, blocks.due_ms(unit) if due_ms is None else due_ms)
            blocks.dirty.clear()
            self.due_ms = due.first_ms
        touched, blocks.touched = blocks.touched, set()
        return touched

    def begin(self) -> None:
        """Record from now on how to undo changes."""
        if self._former is None:
            self._former = []

    def end(self) -> None:
        """Undo all changes since `begin`."""
        former, self._former = self._former or [], None
        for first, end, runs, following in reversed(former):
            self._blocks.put(first, end, None)
            for run in runs:
                self._blocks.put(run.first, run.end, run.status, run.group_hash)
            self.next = following
        self.refresh()

    def _note(self, first: int, end: int) -> None:
        assert self._former is not None
        self._former.append((first, end, [*self._blocks.runs(first, end)], self.next))

    # ---- the checkpoint ------------------------------------------------------------------------------

    def blocks(self) -> list[int]:
        """Return the numbers of all blocks that have rows."""
        return self._blocks.numbers()

    def block_row(self, number: int) -> BlockRow | None:
        """Return the row of a block, None if all of its messages are settled."""
        block = self._blocks.blocks.get(number)
        return None if block is None else block.row()

    def load_next(self, following: int) -> None:
        """Set `next` from the checkpoint."""
        self.next = following
        self.refresh()

    def load_block(self, number: int, row: BlockRow) -> None:
        """Load a block from the checkpoint. Raises `StoreError`."""
        self._blocks.load(number, row)
        self.refresh()

    # ---- lookups; any thread may call these ------------------------------------------------------------

    @property
    def runs(self) -> list[Run]:
        """The states of all messages between `done` and `next`, ascending."""
        following = self.next
        return merged_runs(self._with_settled(self.done, following))

    def _with_settled(self, at: int, end: int) -> Iterator[Run]:
        for run in self._blocks.runs(at, end):
            if run.first > at:
                yield Run(at, run.first, DONE)
            yield run
            at = run.end
        if at < end:
            yield Run(at, end, DONE)

    def run_at(self, offset: int) -> Run | None:
        """Return the state of a message, None if it was never delivered."""
        if offset >= self.next:
            return None
        return next(self._with_settled(offset, offset + 1))

    @property
    def last(self) -> int:
        """The offset behind the last unsettled message; 0 if there is none."""
        return self._blocks.last

    def statuses(self, first: int) -> Iterator[tuple[Status, int]]:
        """Yield the statuses of the unsettled messages from an offset on, with numbers of messages."""
        return self._blocks.statuses(first)

    def unsettled_before(self, offset: int) -> int:
        following = self.next
        if offset >= following:
            return self._blocks.count + offset - following
        return self._blocks.count_before(offset) if offset > self.done else 0

    def settled_spans(self) -> list[tuple[int, int]]:
        """Return first and end offset of each span of settled messages."""
        return [(0, self.done)] * bool(self.done) + [(run.first, run.end) for run in self.runs if run.state is DONE]

    def clients(self, now_ms: int) -> set[str]:
        """Return the consumers with messages in flight, except those whose messages are not bound to them."""
        return {status.client for status in self._blocks.flights() if status.client and status.until_ms > now_ms}

    # ---- takes -------------------------------------------------------------------------------------

    def take(self, wanted: Take, now_ms: int, readable_end: int, epoch: int) -> list[Run]:
        """Return the runs to deliver, failed messages first and alone; none if too many are in flight."""
        most = min(wanted.most, MAX_HELD - self.held)
        found: list[Run] = []
        if now_ms >= self.due_ms:
            due = self._due_runs(now_ms, max(_MIN_CHOICE, wanted.most))
            if wanted.ahead and any(run.delivery_count for run in due):
                return []
            found = self._again(due, wanted, most, epoch)
            most -= sum(run.count for run in found)
        if not found or not any(run.delivery_count > 1 for run in found):
            self._begin(wanted, most, readable_end, epoch, found)
        ends = {
            run.group_hash: run.end for run in found if run.state is OUT and run.group_hash
        }  # of each message group the last one
        return found + message_groups.voided(self._blocks.delivered_runs(ends), ends, wanted.losses) if ends else found

    def _begin(self, wanted: Take, most: int, readable_end: int, epoch: int, found: list[Run]) -> None:
        if wanted.redeliver_only or self.is_full:
            return
        ends = {run.group_hash: run.end for run in found} if found else {}  # of each message group the last one
        first = self.next
        if wanted.unwanted[0] <= first < wanted.unwanted[1] <= readable_end:
            found.append(Run(first, wanted.unwanted[1], DONE))
            first = wanted.unwanted[1]
        end = readable_end if wanted.group_hashes is not None else min(first + most, readable_end)
        if end <= first:
            return
        run = Run(first, end, OUT, 1, wanted.until_ms, epoch, wanted.client)
        if wanted.group_hashes is None:
            found.append(run)
            return
        # The oldest messages of a message group are delivered first, so a message group is free if none are behind
        # those.
        has_group_hash = self._blocks.has_group_hash
        is_busy = (lambda group_hash: has_group_hash(group_hash, ends.get(group_hash, 0))) if ends else has_group_hash
        found += message_groups.fresh_runs(wanted.group_hashes, is_busy, first, end, most, run)

    def _due_runs(self, now_ms: int, most: int) -> list[Run]:
        found: list[Run] = []
        for unit in self._due.due(now_ms):
            for run in self._blocks.due_runs(unit, now_ms):
                found.append(run)
                if len(found) >= most:
                    break
            if len(found) >= most:
                break
        return merged_runs(sorted(found, key=_first_of))

    def _again(self, due: Sequence[Run], wanted: Take, most: int, epoch: int) -> list[Run]:
        failed = message_groups.leading(due, 1, _ALONE_FROM_DELIVERY - 1, wanted.losses)
        if found := self._pieces(failed, max(1, wanted.most // _RETRY_DIVISOR), most, wanted, epoch):
            return found
        suspects = sorted(
            (
                run
                for run in message_groups.heads(due)
                if run.delivery_count >= _ALONE_FROM_DELIVERY or wanted.losses(run)
            ),
            key=_delivery_count_of,
        )
        if found := self._pieces(suspects, 1, most, wanted, epoch):
            return found
        return self._pieces(message_groups.leading(due, 0, 0, wanted.losses), wanted.most, most, wanted, epoch)

    def _pieces(self, runs: Iterable[Run], room: int, most: int, wanted: Take, epoch: int) -> list[Run]:
        found: list[Run] = []
        shut = set[int]()  # message groups with messages that are not delivered now
        may_divide = not (wanted.redeliver_only or self.is_full)
        for run in runs:
            if run.group_hash in shut:
                continue
            # Expired deliveries already count as held, so `most` does not limit them.
            count = min(run.count, room, run.count if run.state is OUT else most)
            if not may_divide and not self._blocks.is_bitmap(run.part(run.first, run.first + count)):
                # Deliver only whole bitmaps, which adds none; but one message of the first block, for progress.
                count = min(count, 1) if run.first // BLOCK == self.done // BLOCK else 0
            if count > 0:
                delivery_count = min(run.delivery_count + 1, MAX_DELIVERY_COUNT)
                state = OUT, delivery_count, wanted.until_ms, epoch, wanted.client
                found.append(Run(run.first, run.first + count, *state, run.group_hash, wanted.losses(run)))
                room -= count
                most -= count if run.state is not OUT else 0
            if count < run.count and run.group_hash:
                shut.add(run.group_hash)
            if not room:
                break
        return found

    def is_with(self, client: str, now_ms: int, *, lost_only: bool) -> bool:
        """Return whether a consumer has messages; with `lost_only`, messages with which another consumer died."""
        return client != "" and any(
            status.client == client and status.until_ms > now_ms and (status.lost or not lost_only)
            for status in self._blocks.flights()
        )

    def has_expired_since(self, asked_ms: int, now_ms: int) -> bool:
        """Return whether the delivery of some message expired between `asked_ms` and now."""
        return any(asked_ms < status.until_ms <= now_ms for status in self._blocks.flights())

    # ---- settles -----------------------------------------------------------------------------------

    def settle(self, settled: Settle) -> tuple[list[Run], list[tuple[int, int]]]:
        """Return the runs that result from a settle, and the messages that were redelivered before it.

        A late settle counts unless the messages were redelivered; a repeated one changes nothing. Extending settled
        messages counts as redelivered, so that a consumer that still works on them learns of it.

        If no run has the epoch of the settle, for example after a reset, all its messages count as redelivered.
        """
        found: list[Run] = []
        expired: list[tuple[int, int]] = []
        out_only = settled.outcome in (PopOutcome.RETURN, PopOutcome.EXTEND)
        for number, wanted in self._wanted(settled, expired).items():
            block, base, taken = self._blocks.blocks.get(number), number * BLOCK, 0
            late = wanted if settled.outcome is PopOutcome.EXTEND else 0
            if block is not None:
                for status, each in block.states.items():
                    if status.epoch == settled.epoch and (status.state is OUT or not out_only):
                        taken |= each & wanted
                late = (late | block.used & wanted) & ~taken
                if settled.outcome is not PopOutcome.DONE:
                    found += [_after(run, settled) for run in block.runs(taken)]
                else:
                    for first, end in spans_in(taken):
                        found.append(Run(base + first, base + end, DONE))
            if late:
                expired += [(base + first, base + end) for first, end in spans_in(late)]
        if len(found) > 1:
            found = merged_runs(found)
        if settled.outcome in (PopOutcome.FREE, PopOutcome.RETURN) and self._blocks.has_group_hashes:
            group_hashes = {run.group_hash for run in found if run.group_hash}
            found += message_groups.following(self._blocks.delivered_runs(group_hashes), found, settled.epoch)
        return found, sorted(expired)

    def _has_epoch(self, epoch: int) -> bool:
        return any(status.epoch == epoch for status, _ in self._blocks.statuses())

    def _wanted(self, settled: Settle, expired: list[tuple[int, int]]) -> dict[int, int]:
        """Return the messages of a settle as bitmaps by block, except those before `done` or behind `next`."""
        found: dict[int, int] = {}
        before, following = 0, self.next
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
            begin = max(first, self.done)
            for number in range(begin // BLOCK, (end - 1) // BLOCK + 1) if begin < end else ():
                at = number * BLOCK
                bits = (1 << min(BLOCK, end - at)) - (1 << max(0, begin - at))
                found[number] = found.get(number, 0) | bits
        return found

    def has_all(self, settled: Settle) -> bool:
        """Return whether all messages of a settle are unsettled and were not redelivered since."""
        for first, end in settled.spans:
            runs = [*self._blocks.runs(first, end)]
            if sum(run.count for run in runs) < end - first or any(run.epoch != settled.epoch for run in runs):
                return False
        return True

    def freed(self, gone: Leave) -> list[Run]:
        """Return runs that release the messages of a consumer that is gone."""
        client, died = gone
        return [
            replace(run, state=FREE, until_ms=0, client="", lost=min(run.lost + died, MAX_LOST))
            for run in merged_runs(self._blocks.runs_in_flight(client))
        ]

    # ---- dead letters --------------------------------------------------------------------------------

    def resolved(self, wanted: Resolve) -> list[Run]:
        """Return the runs that settle dead letters; to settle them again changes nothing."""
        _check_ascending(wanted.spans)
        found: list[Run] = []
        following = self.next
        for first, end in wanted.spans:
            if end > wanted.end:
                raise InvalidArgument(f"messages {first} to {end - 1} are not stored: the queue ends at {wanted.end}")
            if first > following:
                found.append(Run(following, first, FREE))
            if end > self.done:
                found.append(Run(max(first, self.done), end, DONE))
            following = max(following, end)
        self._check_room(following - self.next)
        return found

    def _check_room(self, messages: int) -> None:
        if messages and len(self) + messages // BLOCK > MAX_BITMAPS:
            raise SystemBusy(
                f"the queue holds too many unsettled messages: settle older ones first, from offset {self.done} on",
                limit="pop-unsettled",
            )


def _check_ascending(spans: Iterable[tuple[int, int]]) -> None:
    before = 0
    for first, end in spans:
        if not before <= first < end:
            raise InvalidArgument(f"messages {first} to {end - 1} are out of order: spans must ascend without overlaps")
        before = end


def _after(run: Run, settled: Settle) -> Run:
    first, end = run.first, run.end
    match settled.outcome:
        case PopOutcome.FREE:
            return Run(first, end, FREE, run.delivery_count, settled.until_ms, run.epoch, group_hash=run.group_hash)
        case PopOutcome.RETURN:
            count, until_ms = run.delivery_count - 1, settled.until_ms
            return Run(first, end, FREE, count, until_ms, run.epoch, group_hash=run.group_hash, lost=run.lost)
    return Run(first, end, OUT, run.delivery_count, settled.until_ms, run.epoch, run.client, run.group_hash, run.lost)
