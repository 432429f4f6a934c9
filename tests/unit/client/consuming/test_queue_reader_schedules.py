"""Random schedules of a queue reader against a trivial model: the next offset, and a broker with a list of batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from random import Random

from minimq.consuming.member_state import Grant
from minimq.consuming.queue_decisions import Cancel, Decision, FetchOptions, Frame, OffsetReset, Pull
from minimq.consuming.queue_reader import QueueReader
from minimq.consuming.range_reader import RangeRead
from minimq.consuming.received import EncodedRecords
from minimq_common.errors import OffsetOutOfRange, Unavailable
from minimq_common.model import MessageQueue
from support.batches import encode, one
from support.cases import for_each
from support.chance import SEED
from support.handing import has_any, take

QUEUE = MessageQueue("t", "broker-a", 0)
MAX_MESSAGES = 20
SIZES = (1, 2, 3, 5)


@cache
def data_of(count: int) -> bytes:
    return encode([one()] * count)


class World:
    """One reader, its broker, and the model: `expected` is the offset of the message that has to come next."""

    def __init__(self, rng: Random, *, end: int | None = None) -> None:
        self.rng = rng
        self.now = 0.0
        self.expected = 0 if end is None else rng.randrange(end)
        self.log: list[EncodedRecords] = []
        self.first = 0
        self.pull: Pull | None = None
        self.fetched_to = 0
        self.epoch = 1 << 32
        self.options = FetchOptions(MAX_MESSAGES, 1 << 20, offset_reset="earliest" if end is None else "error")
        self.reader = QueueReader(QUEUE, Grant(self.epoch, self.expected, 7), self.options)
        self.driven = self.reader if end is None else RangeRead(self.reader, end)
        self.append(30)

    @property
    def end(self) -> int:
        return self.log[-1].base_offset + self.log[-1].count if self.log else 0

    def append(self, batches: int) -> None:
        for _ in range(batches):
            count = self.rng.choice(SIZES)
            self.log.append(EncodedRecords(self.end, 0, 0, count, data_of(count)))

    def do(self, decisions: Sequence[Decision]) -> None:
        for decision in decisions:
            match decision:
                case Pull():
                    assert self.pull is None, "one pull at a time"
                    assert decision.max_messages > 0
                    self.pull = decision
                    self.fetched_to = decision.offset
                case Cancel():
                    assert self.pull is not None
                    assert self.pull.number == decision.number
                    self.pull = None
                case OffsetReset():
                    assert decision.offset == self.first, "only what was deleted is missed"
                case _:
                    raise AssertionError(decision)

    def answer(self) -> None:
        """Send the next frame of the pull, or say that it has failed."""
        if self.pull is None:
            return
        pull, choice = self.pull, self.rng.random()
        if choice < 0.1:
            self.pull = None
            self.do(self.driven.pull_failed(pull.number, self.rng.choice((None, Unavailable("gone"))), self.now))
        elif not self.first <= self.fetched_to <= self.end:
            self.pull = None
            error = OffsetOutOfRange("not stored")
            frame = Frame(min_offset=self.first, max_offset=self.end, is_last=True, failure=error)
            self.do(self.driven.frame_arrived(pull.number, frame, self.now))
        else:
            self.send(pull)

    def send(self, pull: Pull) -> None:
        start = self.fetched_to - pull.offset
        left = pull.max_messages - start
        batches: list[EncodedRecords] = []
        for stored in self.log:
            if stored.base_offset + stored.count > self.fetched_to and left > 0 and len(batches) < 3:
                batches.append(stored)
                left -= stored.base_offset + stored.count - max(self.fetched_to, stored.base_offset)
        if batches:
            self.fetched_to = batches[-1].base_offset + batches[-1].count
        is_last = left <= 0 or not batches or self.rng.random() < 0.1
        if is_last:
            self.pull = None
        frame = Frame(batches, min_offset=self.first, max_offset=self.end, is_last=is_last)
        self.do(self.driven.frame_arrived(pull.number, frame, self.now))

    def send_old(self) -> None:
        """Send a frame of a pull that is over, which is dropped."""
        number = self.pull.number if self.pull is not None else self.reader._number + 1
        frame = Frame([EncodedRecords(self.expected + 1000, 0, 0, 1, data_of(1))], is_last=True, max_offset=1)
        assert self.driven.frame_arrived(self.rng.randrange(number), frame, self.now) == []

    def take(self) -> None:
        if not has_any(self.reader, self.now):
            return
        share = self.rng.random() if self.rng.random() < 0.2 else 1.0
        messages = take(self.reader, self.rng.randint(1, 12), self.now, share)
        offsets = [message.queue_offset for message in messages]
        assert offsets, "something can be handed out"
        for offset in offsets:
            assert offset == self.expected or self.expected < offset <= self.first, "only what was deleted is missed"
            self.expected = offset + 1
        self.do(self.reader.tick(self.now))

    def seek(self) -> None:
        self.expected = self.rng.randint(self.first, self.end)
        self.do(self.reader.seek(self.expected, self.now))

    def lease_again(self) -> None:
        if self.rng.random() < 0.5:
            self.do(self.reader.leave())
            assert not has_any(self.reader, self.now)
        self.epoch += self.rng.choice((0, 1 << 32))
        decisions = self.reader.renewed(Grant(self.epoch, 0, 7), self.now)
        assert decisions is not None
        self.do(decisions)

    def delete(self) -> None:
        while len(self.log) > 5 and self.rng.random() < 0.7:
            del self.log[0]
            self.first = self.log[0].base_offset

    def wait(self) -> None:
        self.now += self.rng.random()
        self.do(self.driven.tick(self.now))

    def finish(self) -> None:
        """A broker that answers, and a reader that takes what it gets, come to the end."""
        self.rng = Random(0)
        for _ in range(2000):
            self.answer()
            self.wait()
            self.take()
            if self.reader.position >= self.end:
                return
        raise AssertionError(f"it stays at {self.reader.position} of {self.end}")


@for_each("number", range(60))
def test_every_message_is_handed_out_once_and_in_order(number: int) -> None:
    rng = Random(SEED * 1000 + number)
    world = World(rng)
    actions: tuple[Callable[[], None], ...] = (
        *[world.answer] * 8,
        *[world.take] * 6,
        *[world.wait] * 3,
        world.send_old,
        world.seek,
        world.lease_again,
        world.delete,
        partial(world.append, 2),
    )
    for _ in range(300):
        rng.choice(actions)()
        ahead = world.reader._ahead
        assert ahead.messages <= 1.5 * MAX_MESSAGES + 4 * max(SIZES), "more is fetched than was asked for"
    world.finish()


@for_each("number", range(30))
def test_a_range_is_handed_out_whole(number: int) -> None:
    rng = Random(SEED * 1000 + number)
    world = World(rng, end=60)
    start, got = world.expected, list[EncodedRecords]()
    for _ in range(2000):
        rng.choice((world.answer, world.answer, world.wait, world.send_old))()
        if rng.random() < 0.3 and (found := world.reader.take_batch()) is not None:
            assert found[1] == 0, "nothing is passed over"
            got.append(found[0])
        if world.reader.position >= 60:
            break
    assert got[0].base_offset <= start < got[0].base_offset + got[0].count
    assert got[-1].base_offset < 60 <= got[-1].base_offset + got[-1].count
    assert got == world.log[world.log.index(got[0]) : world.log.index(got[-1]) + 1]
    assert world.pull is None, "no more is asked for"
