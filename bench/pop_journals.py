"""Workers of a work queue, each a process with a journal, and the checks of the journals.

A line is in the file before its worker continues, so the journal of a killed worker has everything that it can have
done. Times are those of the monotonic clock, which all processes of a machine share.
"""

from __future__ import annotations

import math
import os
import random
import signal
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import msgspec
from fault_trial import Verdict

from minimq import MinimqError, WorkQueueConsumer
from minimq.errors import DeadlineExceeded, HandleExpired, Unavailable
from minimq.features.work_queues.work_queue_message import WorkQueueMessage

INVISIBLE_S = 4.0
GRACE_S = 1.0
_MAX = 8
_AGAIN_S = 0.1


class Did(StrEnum):
    """The actions of a worker on a message."""

    #: Received it.
    TOOK = "took"
    #: Before and after the ack.
    ACKS = "acks"
    ACKED = "acked"
    #: Before and after the release.
    RELEASES = "releases"
    RELEASED = "released"
    #: Extended its invisible duration.
    KEPT = "kept"
    #: Got the error that its handle has expired.
    LOST = "lost"


class Line(msgspec.Struct, array_like=True, frozen=True):
    """A line of a journal."""

    did: Did
    asked: float
    at: float
    offset: int
    epoch: int
    number: int
    group_hash: int = 0


class Worker:
    """Receives messages, and acknowledges, releases, extends or forgets them.

    Args:
        consumer: receives the messages.
        journal: gets a line for each action.
        chance: chooses the actions.
        forgetful: whether it records acks that it has not sent.
    """

    def __init__(self, consumer: WorkQueueConsumer, journal: Path, chance: random.Random, *, forgetful: bool) -> None:
        self._consumer, self._chance, self._forgetful = consumer, chance, forgetful
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._parent = os.getppid()

    @property
    def is_wanted(self) -> bool:
        """False once the parent, which reads the journal, has exited."""
        return os.getppid() == self._parent

    def step(self) -> None:
        """Receive some messages, and process them."""
        asked = time.monotonic()
        try:
            messages = self._consumer.receive(self._chance.randrange(1, _MAX), timeout=0.3)
        except MinimqError:
            time.sleep(_AGAIN_S)
            return
        for message in messages:
            self._note(Did.TOOK, asked, message, message.delivery_count)
        stopped = set[int]()  # message groups with a failed message: later ones have to wait for it
        for message in messages:
            if message.group_hash in stopped:
                continue
            try:
                is_done = self._deal_with(message)
            except HandleExpired:
                self._note(Did.LOST, time.monotonic(), message)
                is_done = False
            if message.group_hash and not is_done:
                stopped.add(message.group_hash)

    def _note(self, did: Did, asked: float, message: WorkQueueMessage, number: int = 0) -> None:
        line = Line(did, asked, time.monotonic(), message.queue_offset, message.epoch, number, message.group_hash)
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def _deal_with(self, message: WorkQueueMessage) -> bool:
        """Choose an action for a message; return whether it is acknowledged."""
        asked, what = time.monotonic(), self._chance.random()
        if what < 0.03:
            return False  # forgotten: it is redelivered after its invisible duration
        if what < 0.08:
            delay_ms = self._chance.choice((0, 300, 1500))
            self._note(Did.RELEASES, asked, message, delay_ms)
            with suppress(Unavailable, DeadlineExceeded):
                self._consumer.release(message, delay_ms / 1000)
                self._note(Did.RELEASED, asked, message, delay_ms)
            return False
        if what < 0.13:
            with suppress(Unavailable, DeadlineExceeded):
                self._consumer.extend(message)
                self._note(Did.KEPT, asked, message)
        time.sleep(self._chance.choice((0.0, 0.0, 0.002, 0.02)))
        self._acknowledge(message)
        return True

    def _acknowledge(self, message: WorkQueueMessage) -> None:
        asked = time.monotonic()
        self._note(Did.ACKS, asked, message)
        while self.is_wanted:
            try:
                if not self._forgetful or self._chance.random() < 0.5:
                    self._consumer.ack(message)
                self._note(Did.ACKED, asked, message)
                return
            except (Unavailable, DeadlineExceeded):
                time.sleep(_AGAIN_S)


def work(nameserver: str, topic: str, name: str, journal: Path, seed: int, forgetful: bool) -> None:
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    with WorkQueueConsumer(
        nameserver, group=topic, client_id=name, invisible_s=INVISIBLE_S, max_deliveries=1000, request_timeout_s=3
    ) as consumer:
        consumer.subscribe(topic)
        worker = Worker(consumer, journal, random.Random(seed), forgetful=forgetful)
        while worker.is_wanted and not end.is_set():
            worker.step()


@dataclass
class PopVerdict(Verdict):
    """Numbers of deliveries; a message that was never acknowledged is lost."""

    handed_out: int = 0
    #: While another worker had the message, or before the delay of its release was over.
    two_hands: int = 0
    #: Requested after the message had been acknowledged.
    again: int = 0
    #: With a wrong delivery count.
    count: int = 0
    #: Redeliveries.
    repeated: int = 0
    #: While an older message of the message group was neither acknowledged nor delivered with it.
    out_of_order: int = 0

    WRONG = ("lost", "two_hands", "again", "count", "damaged", "out_of_order")


class _Hand:
    """One delivery of a message, as its worker saw it."""

    def __init__(self, worker: str, took: Line, killed_at: float | None) -> None:
        self.worker, self.took = worker, took
        #: Periods in which no other worker may get it. A late extension starts another period.
        self._kept = [(took.asked, took.asked + INVISIBLE_S)]
        #: From then on others may get it because its worker has died.
        self._freed_at = math.inf if killed_at is None else killed_at + GRACE_S
        self.acks: float | None = None
        self.acked: float | None = None
        self.released: float | None = None

    def add(self, line: Line) -> None:
        begin, end = self._kept[-1]
        match line.did:
            case Did.ACKS:
                self.acks = line.at
            case Did.ACKED:
                self.acked = line.at
            case Did.KEPT:
                self._keep(line.asked, line.asked + INVISIBLE_S)
            case Did.RELEASES:
                self._kept[-1] = begin, min(end, line.asked + line.number / 1000)
                self.released = line.asked
            case Did.RELEASED:
                self._freed_at = math.inf  # the delay holds even if the worker dies
                self._keep(line.asked, line.asked + line.number / 1000)
            case Did.LOST:
                pass

    def end(self, at: float) -> None:
        """Record that it was released with an older message of its message group."""
        self._freed_at = min(self._freed_at, at)

    def _keep(self, begin: float, end: float) -> None:
        if begin <= self._kept[-1][1]:
            begin, _ = self._kept.pop()
        self._kept.append((begin, end))

    def has(self, at: float) -> bool:
        """Return whether no other worker may get it at a time."""
        return at < self._freed_at and any(begin <= at < end for begin, end in self._kept)


def judge(
    journals: Mapping[str, Path], killed: Mapping[str, float], faults: Iterable[float], stored: int
) -> PopVerdict:
    """Compare the journals of all workers.

    Args:
        journals: journals by the name of the worker.
        killed: the time just before a worker was killed, by its name.
        faults: times of other faults of brokers or workers, when a delivery may have been lost.
        stored: number of messages in the only queue.
    """
    decoder = msgspec.json.Decoder(Line)
    hands: defaultdict[int, dict[tuple[int, str], _Hand]] = defaultdict(dict)
    for worker, path in journals.items():
        for text in path.read_bytes().splitlines():
            line = decoder.decode(text)
            key = line.epoch, worker
            if line.did is Did.TOOK:
                hands[line.offset][key] = _Hand(worker, line, killed.get(worker))
            else:
                hands[line.offset][key].add(line)
    _end_with_older(hands)
    moments = sorted([*faults, *killed.values()])
    verdict = PopVerdict(stored, handed_out=sum(map(len, hands.values())))
    for offset in range(stored):
        found = [hand for _, hand in sorted(hands[offset].items())]
        _judge_message(verdict, offset, found, moments)
    _judge_order(verdict, hands)
    return verdict


def _by_group_hash(hands: Mapping[int, dict[tuple[int, str], _Hand]]) -> Iterable[list[int]]:
    """Return the sorted offsets of each message group of a FIFO topic."""
    found: defaultdict[int, list[int]] = defaultdict(list)
    for offset in sorted(hands):
        for group_hash in {hand.took.group_hash for hand in hands[offset].values()} - {0}:
            found[group_hash].append(offset)
    return found.values()


def _end_with_older(hands: Mapping[int, dict[tuple[int, str], _Hand]]) -> None:
    """End deliveries behind a message that the same worker released: they are released with it."""
    for offsets in _by_group_hash(hands):
        given_up: dict[tuple[int, str], float] = {}
        for offset in offsets:
            for key, hand in hands[offset].items():
                if key in given_up:
                    hand.end(given_up[key])
                elif hand.released is not None:
                    given_up[key] = hand.released


def _judge_order(verdict: PopVerdict, hands: Mapping[int, dict[tuple[int, str], _Hand]]) -> None:
    """Find deliveries that overtook an older message of their message group."""
    for offsets in _by_group_hash(hands):
        done_at = 0.0  # when all older messages were acknowledged
        for at, offset in enumerate(offsets):
            for key, hand in hands[offset].items():
                older = offsets[:at] if hand.took.at < done_at else ()
                for former in older:
                    is_done = any(each.acks is not None and each.acks < hand.took.at for each in hands[former].values())
                    if not is_done and key not in hands[former]:
                        verdict.out_of_order += 1
                        verdict.find("order", offset, "by", hand.worker, "at", hand.took.at, "before", former)
            first = min((hand.acks for hand in hands[offset].values() if hand.acks is not None), default=math.inf)
            done_at = max(done_at, first)


def _judge_message(verdict: PopVerdict, offset: int, hands: list[_Hand], moments: list[float]) -> None:
    verdict.repeated += max(0, len(hands) - 1)
    if not any(hand.acks for hand in hands):
        verdict.lost += 1
        verdict.find("lost", offset, len(hands))
    taken = Counter(hand.took.number for hand in hands)
    expected, since = 1, 0.0
    for at, hand in enumerate(hands):
        took = hand.took
        for former in hands[:at]:
            if former.acked is not None and took.asked > former.acked:
                verdict.again += 1
                verdict.find("again", offset, former.worker, "acked", former.acked, hand.worker, "asked", took.asked)
            elif former.has(took.at):
                verdict.two_hands += 1
                verdict.find("two hands", offset, former.worker, former.took, hand.worker, "at", took.at)
        unseen = any(since <= moment <= took.at for moment in moments)
        is_counted = took.number >= expected or bool(
            took.group_hash
        )  # in a group, those behind a failed one are not counted
        if (
            not is_counted
            or (took.number > expected and not unseen)
            or (taken[took.number] > 1 and not took.group_hash)
        ):
            verdict.count += 1
            verdict.find("count", offset, hand.worker, took.number, "for", expected)
        expected, since = took.number + 1, took.asked
