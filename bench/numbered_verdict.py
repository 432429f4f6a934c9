"""Checks of receipts, log and journals of a group: lost, repeated or reordered messages, and offsets that go back."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

import msgspec
from group_process import Committed, Rejected
from numbered_load import NOWHERE, QUEUES, TOPIC, Read, Told, number_in

from minimq import Admin, PullConsumer

_decoder = msgspec.json.Decoder(Read | Committed | Rejected)


@dataclass
class Verdict:
    """Numbers of messages, unless stated otherwise.

    Attributes:
        acknowledged: acknowledged to the producer.
        failed: sends that raised an error; the messages may be stored.
        stored: in all queues at the end.
        lost: acknowledged, but not stored where the receipt says.
        twice: stored more than once.
        reordered: stored in a queue after a message that was sent later.
        unread: stored, but never delivered.
        vanished: delivered, but not stored where they were read: the reader saw unconfirmed messages.
        back: polls of a member that repeat its own, although no other member had the queue in between.
        below_committed: polls that began below an offset that the group had committed before.
        repeated: delivered more than once, which is expected without a commit.
        examples: some findings as text.
    """

    acknowledged: int = 0
    failed: int = 0
    stored: int = 0
    lost: int = 0
    twice: int = 0
    reordered: int = 0
    unread: int = 0
    vanished: int = 0
    back: int = 0
    below_committed: int = 0
    repeated: int = 0
    examples: list[str] = field(default_factory=list)

    def find(self, text: str) -> None:
        if len(self.examples) < 8:
            self.examples.append(text)


def stored(nameserver: str) -> list[list[int]]:
    """Read all queues from the beginning, and return the numbers of the messages in each."""
    found: list[list[int]] = [[] for _ in range(QUEUES)]
    with Admin(nameserver) as admin:
        queues = admin.route(TOPIC).read_queues()
    with PullConsumer(nameserver, group="comparing", auto_commit=False) as consumer:
        consumer.assign(queues)
        while not consumer.at_end():
            for message in consumer.poll(0.05, max_messages=100_000):
                numbers = found[message.queue.queue_id]
                if message.queue_offset != len(numbers):
                    raise SystemExit(f"{message} is not the next one of its queue")
                numbers.append(number_in(message.body))
    return found


def judge_log(verdict: Verdict, told: Told, log: Sequence[Sequence[int]]) -> None:
    """Compare the receipts with the stored messages."""
    verdict.failed = told.failed
    verdict.stored = sum(map(len, log))
    verdict.twice = verdict.stored - len({number for queue in log for number in queue})
    for queue_id, numbers in enumerate(log):
        highest = -1
        for offset, number in enumerate(numbers):
            if number < highest:
                verdict.reordered += 1
                verdict.find(f"message {number} is at {queue_id}/{offset}, behind {highest}")
            highest = max(highest, number)
    for number, (queue_id, offset) in enumerate(zip(told.queues, told.offsets, strict=True)):
        if queue_id == NOWHERE:
            continue
        verdict.acknowledged += 1
        if offset >= len(log[queue_id]) or log[queue_id][offset] != number:
            verdict.lost += 1
            verdict.find(f"message {number} is not at {queue_id}/{offset}, as its receipt says")


# ---- The group --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Delivery:
    """One poll of one member."""

    read: Read
    member: str

    @property
    def end(self) -> int:
        """The offset where the next poll continues."""
        return self.read.first + len(self.read.numbers)


class Journals:
    """The records of the members of a group."""

    def __init__(self, paths: Iterable[Path]) -> None:
        self.deliveries: defaultdict[int, list[Delivery]] = defaultdict(list)
        self.commits: defaultdict[int, list[Committed]] = defaultdict(list)
        for path in paths:
            for line in map(_decoder.decode, path.read_bytes().splitlines()):
                if isinstance(line, Read):
                    self.deliveries[line.queue_id].append(Delivery(line, path.stem))
                elif isinstance(line, Committed):
                    self.commits[line.place[1]].append(line)
        for items in self.deliveries.values():
            items.sort(key=lambda item: item.read.at)

    def reached(self) -> dict[int, int]:
        """Return the end of the read messages by queue."""
        return {queue_id: max(item.end for item in items) for queue_id, items in self.deliveries.items()}


def judge_group(verdict: Verdict, journals: Journals, log: Sequence[Sequence[int]]) -> None:
    """Compare the deliveries with the stored messages."""
    for queue_id, numbers in enumerate(log):
        items = journals.deliveries[queue_id]
        seen: set[int] = set()
        for item in items:
            offsets = range(item.read.first, item.end)
            right = numbers[item.read.first : item.end]
            if list(item.read.numbers) != list(right):
                wrong = len(offsets) - sum(a == b for a, b in zip(item.read.numbers, right, strict=False))
                verdict.vanished += wrong
                verdict.find(
                    f"{item.member} read {wrong} messages from {queue_id}/{item.read.first} that are not there"
                )
            verdict.repeated += sum(offset in seen for offset in offsets)
            seen.update(offsets)
        verdict.unread += len(numbers) - len(seen)
        for former, later in pairwise(items):
            if former.member == later.member and later.read.first < former.end:
                verdict.back += 1
                verdict.find(f"{later.member} went back from {queue_id}/{former.end} to {later.read.first}")
        _judge_commits(verdict, queue_id, items, journals.commits[queue_id])


def _judge_commits(verdict: Verdict, queue_id: int, items: Sequence[Delivery], commits: Sequence[Committed]) -> None:
    """Find polls that began below an offset that was committed before the poll."""
    waiting = sorted(commits, key=lambda commit: commit.at)
    index = highest = 0
    for item in sorted(items, key=lambda item: item.read.asked):
        while index < len(waiting) and waiting[index].at < item.read.asked:
            highest = max(highest, waiting[index].offset)
            index += 1
        if item.read.first < highest:
            verdict.below_committed += 1
            verdict.find(f"{item.member} read {queue_id}/{item.read.first}, and {highest} had been committed")
