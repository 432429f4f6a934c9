"""Workers of a work queue, each a process that keeps a journal, and what the journals prove.

A line is in the file before its worker goes on, so that of one who is killed there is everything that it can have done.
Times are those of the monotonic clock, which all processes of a machine share.
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
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from minimq import MiniMQError, SimpleConsumer
from minimq.errors import DeadlineExceeded, HandleExpired, Unavailable
from minimq.receiving.popped import PoppedMessage

INVISIBLE_S = 4.0
GRACE_S = 1.0
_MOST = 8
_AGAIN_S = 0.1


class Did(StrEnum):
    """The things that a worker does with a message."""

    #: It has got it.
    TOOK = "took"
    #: It is about to acknowledge it, and has.
    ACKS = "acks"
    ACKED = "acked"
    #: It is about to give it up, and has.
    RELEASES = "releases"
    RELEASED = "released"
    #: It has kept it for longer.
    KEPT = "kept"
    #: It was told that others had got it.
    LOST = "lost"


class Line(msgspec.Struct, array_like=True, frozen=True):
    """A line of a journal.

    Attributes:
        did: what was done.
        asked: when the call began.
        at: when it was over.
        offset: of the message.
        epoch: of its handle.
        number: how often it was handed out; of what is given up, the delay in ms.
    """

    did: Did
    asked: float
    at: float
    offset: int
    epoch: int
    number: int


class Worker:
    """Takes messages, and acknowledges, releases, keeps or forgets them.

    Args:
        consumer: takes them.
        journal: gets a line for each thing done.
        chance: decides what is done.
        forgetful: it writes down acknowledgements that it has not sent.
    """

    def __init__(self, consumer: SimpleConsumer, journal: Path, chance: random.Random, *, forgetful: bool) -> None:
        self._consumer, self._chance, self._forgetful = consumer, chance, forgetful
        self._file = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._parent = os.getppid()

    @property
    def is_wanted(self) -> bool:
        """False if nobody is left who would look at the journal."""
        return os.getppid() == self._parent

    def step(self) -> None:
        """Take some messages, and deal with them."""
        asked = time.monotonic()
        try:
            messages = self._consumer.receive(self._chance.randrange(1, _MOST), timeout=0.3)
        except MiniMQError:
            time.sleep(_AGAIN_S)
            return
        for message in messages:
            self._note(Did.TOOK, asked, message, message.tries)
        for message in messages:
            try:
                self._deal_with(message)
            except HandleExpired:
                self._note(Did.LOST, time.monotonic(), message)

    def _note(self, did: Did, asked: float, message: PoppedMessage, number: int = 0) -> None:
        line = Line(did, asked, time.monotonic(), message.queue_offset, message.epoch, number)
        os.write(self._file, msgspec.json.encode(line) + b"\n")

    def _deal_with(self, message: PoppedMessage) -> None:
        asked, what = time.monotonic(), self._chance.random()
        if what < 0.03:
            return  # forgotten: its time has to come
        if what < 0.08:
            delay_ms = self._chance.choice((0, 300, 1500))
            self._note(Did.RELEASES, asked, message, delay_ms)
            with suppress(Unavailable, DeadlineExceeded):
                self._consumer.release(message, delay_ms / 1000)
                self._note(Did.RELEASED, asked, message, delay_ms)
            return
        if what < 0.13:
            with suppress(Unavailable, DeadlineExceeded):
                self._consumer.extend(message)
                self._note(Did.KEPT, asked, message)
        time.sleep(self._chance.choice((0.0, 0.0, 0.002, 0.02)))
        self._acknowledge(message)

    def _acknowledge(self, message: PoppedMessage) -> None:
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
    """Work until SIGTERM."""
    end = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: end.set())
    with SimpleConsumer(
        nameserver, group=topic, client_id=name, invisible_s=INVISIBLE_S, max_tries=1000, request_timeout_s=3
    ) as consumer:
        consumer.subscribe(topic)
        worker = Worker(consumer, journal, random.Random(seed), forgetful=forgetful)
        while worker.is_wanted and not end.is_set():
            worker.step()


@dataclass
class Verdict:
    """Numbers of messages and hand-outs.

    Attributes:
        stored: messages.
        handed_out: hand-outs that a worker has seen.
        lost: messages that nobody has acknowledged.
        two_hands: hand-outs while another had the message, or before the delay was over that it was given up for.
        again: hand-outs that were asked for after the message had been acknowledged.
        tries: hand-outs that were counted wrongly.
        repeated: hand-outs that were not the first.
        damaged: data directories in which `minimq-broker check` finds something; also what is saved of the queue, if it
            does not follow from the log.
        examples: some findings as text.
    """

    stored: int = 0
    handed_out: int = 0
    lost: int = 0
    two_hands: int = 0
    again: int = 0
    tries: int = 0
    repeated: int = 0
    damaged: int = 0
    examples: list[str] = field(default_factory=list)

    def find(self, *what: object) -> None:
        if len(self.examples) < 10:
            self.examples.append(" ".join(map(str, what)))

    @property
    def is_sound(self) -> bool:
        return not (self.lost or self.two_hands or self.again or self.tries or self.damaged)


class _Hand:
    """One hand-out of a message, as its worker saw it."""

    def __init__(self, worker: str, took: Line, killed_at: float | None) -> None:
        self.worker, self.took = worker, took
        #: From when to when nobody else may get it. What comes late begins another such time.
        self._kept = [(took.asked, took.asked + INVISIBLE_S)]
        #: When others may get it because its worker has died.
        self._freed_at = math.inf if killed_at is None else killed_at + GRACE_S
        self.acks: float | None = None
        self.acked: float | None = None

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
            case Did.RELEASED:
                self._freed_at = math.inf  # it has to wait whoever dies
                self._keep(line.asked, line.asked + line.number / 1000)
            case Did.LOST:
                pass

    def _keep(self, begin: float, end: float) -> None:
        if begin <= self._kept[-1][1]:
            begin, _ = self._kept.pop()
        self._kept.append((begin, end))

    def has(self, at: float) -> bool:
        """Tell whether nobody else may get it at a time."""
        return at < self._freed_at and any(begin <= at < end for begin, end in self._kept)


def judge(journals: Mapping[str, Path], killed: Mapping[str, float], faults: Iterable[float], stored: int) -> Verdict:
    """Compare the journals of all workers.

    Args:
        journals: of the workers, by their names.
        killed: when workers were killed; before it.
        faults: when something else was done to brokers or workers: a hand-out may have reached nobody then.
        stored: number of messages of the one queue.
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
    moments = sorted([*faults, *killed.values()])
    verdict = Verdict(stored, sum(map(len, hands.values())))
    for offset in range(stored):
        found = [hand for _, hand in sorted(hands[offset].items())]
        _judge_message(verdict, offset, found, moments)
    return verdict


def _judge_message(verdict: Verdict, offset: int, hands: list[_Hand], moments: list[float]) -> None:
    verdict.repeated += max(0, len(hands) - 1)
    if not any(hand.acks for hand in hands):
        verdict.lost += 1
        verdict.find("lost", offset, len(hands))
    tries = Counter(hand.took.number for hand in hands)
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
        if took.number < expected or (took.number > expected and not unseen) or tries[took.number] > 1:
            verdict.tries += 1
            verdict.find("tries", offset, hand.worker, took.number, "for", expected)
        expected, since = took.number + 1, took.asked
