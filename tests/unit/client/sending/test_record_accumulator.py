"""The decisions of a producer: what it sends, when, and what follows; played in virtual time, without brokers."""

from __future__ import annotations

import math
import random
from collections import Counter, defaultdict

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.connection.broker_troubles import BrokerTroubles
from minimq.features.delayed.due_times import DueTime, due_time
from minimq.sending.pending_batch import BatchNumber, PendingBatch, PendingMessage, PendingRecords, Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq.sending.receipt import BatchReceipt, SendReceipt, SendStatus
from minimq.sending.record_accumulator import RecordAccumulator
from minimq_common.errors import (
    InvalidArgument,
    MinimqError,
    NotEnoughReplicas,
    NotMaster,
    SendFailed,
    SystemBusy,
    TopicNotFound,
    Unavailable,
)
from minimq_common.model import BrokerData, Message, MessageQueue, Permission, QueueData, TopicRoute
from support.chance import SEED

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]
NOBODYS = MessageQueue("t", "c", 0)


class Routes:
    """Topics t and u, each with two queues at brokers a and b."""

    def __init__(self) -> None:
        queues = tuple(QueueData(name, 2, 2, Permission.READ_WRITE) for name in "ab")
        brokers = {name: BrokerData("default", name, {0: f"{name}:1"}) for name in "ab"}
        self.routes = {topic: TopicRoute(topic, queues, brokers) for topic in "tu"}

    def known(self, topic: str) -> TopicRoute | None:
        return self.routes.get(topic)


class Told:
    """The outcome of a message, which is told once."""

    def __init__(self) -> None:
        self.outcomes: list[SendReceipt | MinimqError | None] = []

    def __call__(self, outcome: SendReceipt | MinimqError, /) -> None:
        self.outcomes.append(outcome)


class Try:
    """A try that is under way."""

    def __init__(self, batch: PendingBatch) -> None:
        assert batch.target is not None
        assert batch.number is not None
        self.batch = batch
        self.attempt = batch.attempts
        self.target: Target = batch.target
        self.sequence = batch.number.sequence


class Stream:
    """The stream to a broker."""

    delay = ": its disk is slow"

    def __init__(self, play: Play, broker: str) -> None:
        self._play, self._broker = play, broker

    @property
    def moved_at(self) -> float:
        return self._play.moved

    def fail(self, _: MinimqError) -> None:
        self._play.abandoned.append(self._broker)
        self._play.break_streams(self._broker)


class Play:
    """A producer, its two brokers, and the time. Messages are numbered as they are handed in."""

    def __init__(self, **options: int) -> None:
        settings = {"max_in_flight_requests": 2, "batch_messages": 4, "batch_bytes": 1000} | options
        self.options = ProducerOptions(**settings)  # type: ignore[arg-type]  # numbers all of them
        self.routes = Routes()
        self.health = BrokerTroubles()
        self.accumulator = RecordAccumulator(
            QueueSelector(self.routes.known, self.options, random.Random(7), self.health), self.options, self
        )
        self.now = 100.0
        self.under_way: list[Try] = []
        #: The numbers of messages in each batch that has left, by its sequence number.
        self.batches: dict[int, list[int]] = {}
        self.first_left: dict[int, float] = {}
        #: When batches are due, by sequence number.
        self.dues: dict[int, float | None] = {}
        #: What brokers have stored: sequence numbers by broker, and messages by the queue that they were bound to.
        self.stored: defaultdict[str, dict[int, MessageQueue]] = defaultdict(dict)
        self.logs: defaultdict[MessageQueue | None, list[int]] = defaultdict(list)
        self.told: dict[int, Told] = {}
        #: The numbers of messages, by identity; and those of records, by sequence number.
        self.items: dict[int, int] = {}
        self.kept: list[PendingMessage] = []
        self.records_in: dict[int, list[int]] = {}
        #: Topics that were looked for, with whether they are gone; and streams that were abandoned.
        self.looked_for: list[tuple[str, bool]] = []
        self.abandoned: list[str] = []
        #: When a broker acknowledged a part of a large batch last.
        self.moved = -math.inf
        self.streams = {name: Stream(self, name) for name in "abc"}

    # ---- events ---------------------------------------------------------------------------------

    def message(self, queue: MessageQueue | None = None, topic: str = "t", hold: DueTime | None = None) -> int:
        number = len(self.told)
        told = self.told[number] = Told()
        item = PendingMessage(Message(topic, b"x"), queue, 1, told, hold)
        self.items[id(item)] = number
        self.kept.append(item)
        item.born_ms, item.handed_in = 0, self.now
        self.accumulator.add_message(item, self.now, is_lone=number % 2 == 0)
        self.drain()
        return number

    def records(self, queue: MessageQueue | None = None, count: int = 1, topic: str = "t") -> None:
        numbers = list(range(len(self.told), len(self.told) + count))
        self.told.update((number, Told()) for number in numbers)

        def complete(outcome: BatchReceipt | MinimqError) -> None:
            for place, number in enumerate(numbers):
                receipt = SendReceipt(outcome, place) if isinstance(outcome, BatchReceipt) else outcome
                self.told[number].outcomes.append(receipt)

        batch = PendingRecords(topic, queue, count=count, completion=complete)
        batch.handed_in = self.now
        batch.number = self.accumulator.new_number()
        self.records_in[batch.number.sequence] = numbers
        batch.data = b"encoded"
        self.accumulator.add_batch(batch)
        self.drain()

    def answer(self, index: int = 0) -> None:
        """Let a broker store a batch, and say so."""
        one = self.under_way.pop(index % len(self.under_way))
        queue, status = self.store(one)
        receipt = BatchReceipt(queue, 0, 0, one.batch.count, 1, one.sequence, status)
        if self.accumulator.acknowledged(one.batch, one.attempt, receipt, self.now):
            one.batch.complete(receipt)
        self.drain()

    def store(self, one: Try) -> tuple[MessageQueue, SendStatus]:
        stored = self.stored[one.target.queue.broker_name]
        if one.sequence in stored:
            return stored[one.sequence], SendStatus.ALREADY_STORED
        stored[one.sequence] = one.target.queue
        self.logs[one.batch.queue] += self.batches[one.sequence]
        return one.target.queue, SendStatus.SEND_OK

    def fail(self, error: MinimqError, index: int = 0) -> None:
        one = self.under_way.pop(index % len(self.under_way))
        self.failed(one, error)
        self.drain()

    def failed(self, one: Try, error: MinimqError) -> None:
        self.accumulator.failed(one.batch, one.attempt, error, self.now)

    def hang(self, index: int, *, stored: bool) -> None:
        """Leave a request without an answer; the broker may have stored it."""
        one = self.under_way.pop(index % len(self.under_way))
        if stored:
            self.store(one)

    def break_streams(self, broker: str) -> None:
        broken = [one for one in self.under_way if one.target.queue.broker_name == broker]
        self.under_way = [one for one in self.under_way if one not in broken]
        for one in broken:
            self.failed(one, Unavailable("the connection broke"))
        self.drain()

    def pass_time(self, seconds: float) -> None:
        """Let time pass, and wake the accumulator whenever it has asked for that."""
        end = self.now + seconds
        while (at := self.accumulator.wake_at) <= end:
            self.now = max(self.now, at)
            self.under_way = [
                one for one in self.under_way if max(one.batch.expires, self.moved + one.batch.timeout_s) > self.now
            ]
            self.accumulator.time_passed(self.now)
            self.drain()
        self.now = end

    # ---- what the accumulator decides -----------------------------------------------------------

    def drain(self) -> None:
        while self.accumulator.drain(self.now):
            pass

    def complete(self, batch: PendingBatch, error: MinimqError) -> None:
        batch.complete(error)

    def find_route(self, topic: str, *, is_gone: bool) -> None:
        self.looked_for.append((topic, is_gone))

    def not_stored(self, target: Target, error: MinimqError) -> None:
        pass

    def transmit(self, batch: PendingBatch) -> None:
        one = Try(batch)
        numbers = [self.items[id(item)] for item in batch.messages] or self.records_in[one.sequence]
        self.dues[one.sequence] = batch.hold.at_s if isinstance(batch.hold, DueTime) else None
        assert self.batches.setdefault(one.sequence, numbers) == numbers, "a number stands for one batch"
        assert batch.number is not None
        open_ = {other.sequence for other in self.under_way} | {one.sequence}
        assert batch.number.sequence - batch.number.unsettled <= min(open_), "what may come again is not forgotten"
        left = self.first_left.setdefault(one.sequence, self.now)
        batch.data = b"encoded"
        batch.stream = self.streams[one.target.queue.broker_name]
        deadline = max(left + self.options.send_timeout_s, self.now)  # it may have waited for room longer than that
        assert self.now < batch.expires <= deadline + 0.2
        self.under_way.append(one)
        windows = Counter(other.target.queue.broker_name for other in self.under_way)
        assert max(windows.values()) <= self.options.max_in_flight_requests
        bound = Counter(other.batch.queue for other in self.under_way if other.batch.queue is not None)
        assert not bound or max(bound.values()) == 1, "nothing overtakes in a chosen queue"

    def outcome(self, number: int) -> SendReceipt | MinimqError | None:
        [outcome] = self.told[number].outcomes
        return outcome

    def sizes(self) -> list[int]:
        return [len(numbers) for numbers in self.batches.values()]


# ---- gathering and turns ------------------------------------------------------------------------


def delayed(delay_s: float, now: float = 0.0, *, recallable: bool = False) -> DueTime | None:
    return due_time(Message("t", b"x", deliver_after_s=delay_s, recallable=recallable), now, 1e9)


def test_delayed_messages_travel_with_those_that_are_due_in_the_same_bucket() -> None:
    play = Play(max_in_flight_requests=1)
    for _ in range(2):  # one under way at each broker
        play.message()
    soon, plain = play.message(hold=delayed(5.01)), play.message()
    late, with_soon = play.message(hold=delayed(7.0)), play.message(hold=delayed(5.09))
    for _ in range(5):
        play.answer()
    assert [*play.batches.values()][2:] == [[soon, with_soon], [plain], [late]]
    with_soon_due = delayed(5.09)
    assert with_soon_due is not None
    assert play.dues[2] == with_soon_due.at_s, "the last one of a bucket decides, so none is early"
    assert play.dues[3] is None


def test_a_recallable_message_travels_alone() -> None:
    play = Play(max_in_flight_requests=1)
    for _ in range(2):
        play.message()
    for _ in range(3):
        play.message(hold=delayed(5.0, recallable=True))
    for _ in range(5):
        play.answer()
    assert play.sizes() == [1] * 5


def test_a_delayed_message_keeps_its_due_time_over_tries() -> None:
    play = Play()
    due = delayed(5.0)
    play.message(hold=due)
    play.fail(Unavailable("offline"))
    play.pass_time(1)
    [one] = play.under_way
    assert one.batch.hold == due


def test_a_flood_for_one_destination_lets_the_others_through() -> None:
    play = Play(max_in_flight_requests=1)
    for _ in range(100):
        play.records()
    bound, other = play.message(QUEUES[0]), play.message(topic="u")
    for _ in range(6):
        play.answer()
    assert play.told[bound].outcomes
    assert play.told[other].outcomes


def test_a_burst_for_any_queue_is_divided_among_the_queues() -> None:
    play = Play(batch_messages=1000)
    for _ in range(4):
        play.message()  # all places are taken
    for _ in range(400):
        play.message()
    while play.under_way:
        play.answer()
    assert play.sizes() == [1] * 4 + [100] * 4
    assert {queue for stored in play.stored.values() for queue in stored.values()} == set(QUEUES)


# ---- numbers ------------------------------------------------------------------------------------


@given(st.lists(st.none() | st.integers(0, 20)))
def test_what_may_be_sent_again_is_never_forgotten(steps: list[int | None]) -> None:
    accumulator = Play().accumulator
    begun: list[BatchNumber] = []
    open_: set[int] = set()
    for step in steps:
        if step is None:
            number = accumulator.new_number()
            sequence, unsettled = number
            assert sequence == len(begun)
            assert sequence - unsettled == min(open_, default=sequence)
            begun.append(number)
            open_.add(sequence)
        elif step in open_:
            batch = PendingBatch("t", None)
            batch.number = begun[step]
            accumulator.finish(batch)
            open_.discard(step)


# ---- failures -----------------------------------------------------------------------------------


def test_a_try_that_makes_progress_has_no_timeout() -> None:
    play = Play()
    number = play.message(QUEUES[0])
    for _ in range(100):  # much longer than `send_timeout_s`
        play.moved = play.now
        play.pass_time(0.9)
    assert not play.abandoned
    play.answer()
    assert isinstance(play.outcome(number), SendReceipt)

    number = play.message(QUEUES[0])
    play.hang(0, stored=False)
    play.moved = play.now
    for _ in range(100):
        play.pass_time(0.9)
        while play.under_way:
            play.hang(0, stored=False)
    assert isinstance(play.outcome(number), SendFailed)


def test_a_topic_that_a_broker_does_not_know_is_forgotten_and_looked_for_a_few_times() -> None:
    play = Play()
    number = play.message()
    del play.routes.routes["t"]
    play.fail(TopicNotFound("gone"))
    assert play.looked_for[0] == ("t", True)
    play.pass_time(1.0)
    assert isinstance(play.outcome(number), TopicNotFound)


def test_batches_for_a_broker_that_keeps_the_topic_wait_for_the_new_route() -> None:
    play = Play()
    gone, first, second = play.message(QUEUES[0]), play.message(QUEUES[2]), play.message(QUEUES[2])
    route = play.routes.routes.pop("t")
    play.fail(TopicNotFound("gone"))
    play.answer()
    play.pass_time(0.1)
    assert [len(play.told[number].outcomes) for number in (gone, first, second)] == [1, 1, 0]
    play.routes.routes["t"] = TopicRoute("t", route.queues[1:], route.brokers)
    play.pass_time(0.1)
    play.answer()
    assert isinstance(play.outcome(gone), TopicNotFound)
    assert isinstance(play.outcome(second), SendReceipt)


@pytest.mark.parametrize("error", [Unavailable("no answer"), NotEnoughReplicas("too few"), NotMaster("no longer")])
def test_an_error_that_is_final_hides_no_try_that_may_be_stored(error: MinimqError) -> None:
    play = Play()
    number = play.message()
    play.fail(error)
    play.pass_time(0.5)
    play.fail(InvalidArgument("the broker does not like it"))
    outcome = play.outcome(number)
    assert isinstance(outcome, SendFailed)
    assert [error.message in line for line in outcome.attempts] == [True, False]


def test_messages_that_waited_too_long_behind_a_failed_batch_fail_with_their_number() -> None:
    play = Play(max_in_flight_requests=1)
    play.message(QUEUES[0])
    late = [play.message(QUEUES[0]) for _ in range(3)]
    while not play.told[late[0]].outcomes:
        if play.under_way:
            play.fail(Unavailable("offline"))
        play.pass_time(0.1)
    assert all(str(play.outcome(number)).startswith("3 messages for topic 't' were not") for number in late)


# ---- at random ----------------------------------------------------------------------------------

#: Random schedules of each kind; ten thousand take a minute.
SCHEDULES = 60

ERRORS = (
    Unavailable("no connection"),
    SystemBusy("too much to do", retry_after_s=0.3),
    TopicNotFound("no topic"),
    InvalidArgument("no such batch"),
)


def _step(play: Play, chance: random.Random) -> None:
    queue = chance.choice([None, None, *QUEUES, NOBODYS])
    steps = {"message": 8, "records": 3, "answer": 8, "fail": 3, "hang": 1, "break": 1, "time": 3, "route": 2}
    match chance.choices([*steps], [*steps.values()])[0]:
        case "message":
            due = chance.choice([None, None, delayed(1.0), delayed(9.0, recallable=True)]) if queue is None else None
            play.message(queue, chance.choice("ttu") if queue is None else "t", due)
        case "records":
            play.records(queue, chance.randrange(1, 6))
        case "time":
            play.pass_time(chance.choice((0.01, 0.1, 0.4, 2.0)))
        case "route":
            play.routes.routes = {} if play.routes.routes else Routes().routes
        case "break":
            play.break_streams(chance.choice("ab"))
        case what if play.under_way:
            index = chance.randrange(len(play.under_way))
            if what == "answer":
                play.answer(index)
            elif what == "fail":
                play.fail(chance.choice(ERRORS), index)
            else:
                play.hang(index, stored=chance.random() < 0.5)


@pytest.mark.parametrize("max_in_flight_requests", [1, 2, 3])
def test_promises_hold_whatever_happens(max_in_flight_requests: int) -> None:
    for schedule in range(SCHEDULES):
        chance = random.Random(f"{SEED} {max_in_flight_requests} {schedule}")
        play = Play(max_in_flight_requests=max_in_flight_requests)
        for _ in range(chance.randrange(10, 120)):
            _step(play, chance)
        play.routes.routes = Routes().routes
        for _ in range(200):  # all is well from here on
            while play.under_way:
                play.answer(chance.randrange(len(play.under_way)))
            play.pass_time(0.1)
        _check(play)


def _check(play: Play) -> None:
    by_sequence = {number: sequence for sequence, numbers in play.batches.items() for number in numbers}
    for number in play.told:
        outcome = play.outcome(number)  # one, and no other
        if isinstance(outcome, SendReceipt):
            sequence = by_sequence[number]
            assert outcome.batch.sequence == sequence
            assert play.stored[outcome.queue.broker_name][sequence] == outcome.queue
            assert play.batches[sequence][outcome.index] == number
    for queue in QUEUES:
        log = play.logs[queue]
        assert log == sorted(log), "what is bound to a queue keeps its order, and is stored once"
        assert len(log) == len(set(log))
    assert not play.accumulator.waiting
    assert play.accumulator.wake_at == math.inf
    statistics = play.accumulator.counters.snapshot((0, 0), ())
    assert statistics.acknowledged + statistics.failed == len(play.told)
