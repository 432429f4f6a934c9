"""Checks of the journals of a group's members: lost, repeated or reordered deliveries, and delays."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from group_process import Committed, Ended, Holds, Line, Place, Polled, Rejected

_decoder = msgspec.json.Decoder(Line)


class JournalReader:
    """Reads the journal of one member while it is being written."""

    def __init__(self, client_id: str, path: Path) -> None:
        self.client_id = client_id
        self.polls: list[Polled] = []
        self.commits: list[Committed] = []
        self.rejected: list[Rejected] = []
        self.holds: list[Place] = []
        self.changed_holds = 0
        self.ended: Ended | None = None
        self.broken_at: list[float] = []
        path.touch()
        self._file = path.open("rb")
        self._rest = b""

    def read(self) -> None:
        """Read the lines that were written since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        for line in map(_decoder.decode, lines):
            match line:
                case Polled():
                    self.polls.append(line)
                case Committed():
                    self.commits.append(line)
                case Rejected():
                    self.rejected.append(line)
                case Holds():
                    self.holds = line.places
                    self.changed_holds += 1
                case Ended():
                    self.ended = line
                    self.holds = []

    def close(self) -> None:
        self._file.close()


@dataclass(frozen=True)
class Delivery:
    """One poll of one member."""

    poll: Polled
    member: JournalReader


@dataclass
class Verdict:
    """Numbers of messages, unless the field counts polls.

    Attributes:
        stored: in all queues.
        lost: stored, but never delivered.
        twice: repeated deliveries; a message that was delivered three times counts twice.
        unexplained: repeated deliveries without a member that was killed or hung before its commit.
        skipped: polls that skipped messages which had not been delivered before.
        disordered: polls that did not continue where the same owner had stopped.
        stale: polls under a lease after another member had delivered under a later one.
        moves: how often a queue moved from one member to another.
        examples: some findings as text.
    """

    stored: int = 0
    lost: int = 0
    twice: int = 0
    unexplained: int = 0
    skipped: int = 0
    disordered: int = 0
    stale: int = 0
    moves: int = 0
    examples: list[str] = field(default_factory=list)

    def find(self, what: str, place: Place, delivery: Delivery) -> None:
        if len(self.examples) < 8:
            poll = delivery.poll
            self.examples.append(
                f"{what}: {place[0]}/{place[1]} offsets {poll.first} to {poll.last} by {delivery.member.client_id} "
                f"at {poll.at:.3f} under epoch {poll.epoch:x}"
            )


def deliveries(journals: Iterable[JournalReader]) -> dict[Place, list[Delivery]]:
    """Return all polls by queue, sorted by the time of the poll, not of its line in the journal."""
    found: defaultdict[Place, list[Delivery]] = defaultdict(list)
    for journal in journals:
        for poll in journal.polls:
            found[poll.place].append(Delivery(poll, journal))
    for items in found.values():
        items.sort(key=lambda item: item.poll.at)
    return dict(found)


def judge(by_place: Mapping[Place, Sequence[Delivery]], ends: Mapping[Place, int]) -> Verdict:
    """Compare the deliveries with the stored messages: all offsets from 0 to the end of each queue."""
    verdict = Verdict(stored=sum(ends.values()))
    for place, end in ends.items():
        items = by_place.get(place, ())
        verdict.lost += end - covered(items)
        _judge_queue(verdict, place, items)
    return verdict


def covered(items: Sequence[Delivery]) -> int:
    """Return how many distinct offsets were delivered."""
    count = reached = 0
    for first, last in sorted((item.poll.first, item.poll.last) for item in items):
        count += max(0, last + 1 - max(first, reached))
        reached = max(reached, last + 1)
    return count


def _judge_queue(verdict: Verdict, place: Place, items: Sequence[Delivery]) -> None:
    reached = 0
    newest: Delivery | None = None  # the first delivery under the highest epoch so far
    for index, item in enumerate(items):
        poll = item.poll
        former = items[index - 1] if index else None
        if poll.count != poll.last - poll.first + 1 or poll.first > reached:
            verdict.skipped += 1
            verdict.find("skipped", place, item)
        if former and former.member is item.member and former.poll.epoch == poll.epoch:
            if poll.first != former.poll.last + 1:
                verdict.disordered += 1
                verdict.find("out of order", place, item)
        elif former and former.member is not item.member:
            verdict.moves += 1
        if newest and poll.epoch and poll.epoch < newest.poll.epoch:
            verdict.stale += 1
            verdict.find("under an old lease", place, item)
        if newest is None or poll.epoch > newest.poll.epoch:
            newest = item
        if poll.first < reached:
            _judge_repeat(verdict, place, items, index, min(poll.last + 1, reached))
        reached = max(reached, poll.last + 1)


def _judge_repeat(verdict: Verdict, place: Place, items: Sequence[Delivery], index: int, end: int) -> None:
    """Judge a delivery that may repeat offsets below `end`."""
    first, unexplained = items[index].poll.first, 0
    earlier = [item for item in items[:index] if item.poll.last >= first and item.poll.first < end]
    for offset in range(first, end):
        by = [item for item in earlier if item.poll.first <= offset <= item.poll.last]
        if not by:
            continue
        verdict.twice += 1
        unexplained += not all(_may_be_repeated(item, place, offset) for item in by)
    if unexplained:
        verdict.unexplained += unexplained
        verdict.find("twice", place, items[index])


def _may_be_repeated(item: Delivery, place: Place, offset: int) -> bool:
    """Return True if the member had received the message and was killed or hung before it committed it."""
    for broken_at in item.member.broken_at:
        commits = (commit for commit in item.member.commits if commit.place == place and commit.at <= broken_at)
        if item.poll.at <= broken_at and offset >= max((commit.offset for commit in commits), default=0):
            return True
    return False


@dataclass(frozen=True)
class Ages:
    """The age of the oldest message of each poll, in ms."""

    count: int
    p50: float
    p99: float
    most: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Ages:
        ascending = sorted(values) or [0.0]
        at = [ascending[min(int(len(ascending) * share), len(ascending) - 1)] for share in (0.5, 0.99)]
        return cls(len(ascending), at[0], at[1], ascending[-1])


@dataclass(frozen=True)
class Waits:
    """Delays of messages, by queue and rebalance.

    Attributes:
        moved: the first poll of each new owner.
        stayed: the worst poll of each queue that kept its owner during a rebalance.
        quiet: all polls between rebalances.
    """

    moved: Ages
    stayed: Ages
    quiet: Ages


def waits(
    by_place: Mapping[Place, Sequence[Delivery]], since: float, stretches: Sequence[tuple[float, float]]
) -> Waits:
    """Measure delays.

    Args:
        by_place: deliveries by queue.
        since: earlier deliveries do not count.
        stretches: begin and end of each rebalance, in order.
    """
    moved: list[float] = []
    stayed: list[float] = []
    quiet: list[float] = []
    for every in by_place.values():
        items = [item for item in every if item.poll.at >= since]
        moves = {id(later): later for former, later in pairwise(items) if former.member is not later.member}
        moved += [item.poll.age_ms for item in moves.values()]
        for inside, polls in _cut(items, stretches):
            if not inside:
                quiet += [item.poll.age_ms for item in polls]
            elif not any(id(item) in moves for item in polls):
                stayed.append(max(item.poll.age_ms for item in polls))
    return Waits(Ages.of(moved), Ages.of(stayed), Ages.of(quiet))


def _cut(items: Sequence[Delivery], stretches: Sequence[tuple[float, float]]) -> Iterator[tuple[bool, list[Delivery]]]:
    """Yield the polls inside each stretch and between stretches, with True for inside; empty lists are left out."""
    index = 0
    for began, ended in stretches:
        for inside, until in ((False, began), (True, ended)):
            start = index
            while index < len(items) and items[index].poll.at < until:
                index += 1
            if index > start:
                yield inside, list(items[start:index])
    # Polls after the last stretch are left out: they drain the backlog of the producer, which has stopped.
