"""In which order things leave a producer: by destination as they came, and every destination in its turn."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.sending.outgoing import InBuffer, Lane, OutgoingBatch, PendingMessage
from minimq.sending.placement import Place, Placement
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.waiting_lines import WaitingLines
from minimq_common.errors import Unavailable
from minimq_common.model import BrokerData, Message, MessageQueue, Permission, QueueData, TopicRoute

QUEUES = [MessageQueue("t", broker, number) for broker in "ab" for number in range(2)]
NOBODYS = MessageQueue("t", "c", 0)


class Routes:
    def known(self, topic: str) -> TopicRoute | None:
        queues = tuple(QueueData(name, 2, 2, Permission.READ_WRITE) for name in "ab")
        return _ROUTES.setdefault(
            topic, TopicRoute(topic, queues, {name: BrokerData("default", name, {0: f"{name}:1"}) for name in "ab"})
        )


_ROUTES: dict[str, TopicRoute] = {}


@dataclass
class Sending:
    """A producer without brokers: what has left is in `sent`, with the numbers of its messages."""

    window: int = 2
    now: float = 0.0
    sent: list[tuple[MessageQueue | None, Place, list[int]]] = field(default_factory=list)
    under_way: list[tuple[OutgoingBatch, Place]] = field(default_factory=list)
    numbers: dict[int, list[int]] = field(default_factory=dict)
    given: int = 0

    def __post_init__(self) -> None:
        self.placement = Placement(Routes(), ProducerOptions(window=self.window), random.Random(7))
        self.lines = WaitingLines(self.placement, 4, 1000, 4)

    def message(self, queue: MessageQueue | None, topic: str = "t") -> None:
        self.lines.add_message(topic, queue, PendingMessage(Message("t", b"x"), None, 0, self.now, 1, self.given))
        self.given += 1

    def batch(self, queue: MessageQueue | None, count: int = 1, topic: str = "t") -> None:
        numbers = list(range(self.given, self.given + count))
        self.given += count
        self.lines.add_batch(self.outgoing(topic, queue, numbers))

    def outgoing(self, topic: str, queue: MessageQueue | None, numbers: list[int]) -> OutgoingBatch:
        return OutgoingBatch(
            topic,
            queue,
            data=b"",
            count=len(numbers),
            in_buffer=InBuffer(numbers, 0),
            sequence=numbers[0],
            handed_in=self.now,
            complete=lambda receipt, error: None,
        )

    def pump(self) -> None:
        while (departure := self.lines.next(self.now)) is not None:
            what = departure.what
            if isinstance(what, Lane):
                what = what.sealed(b"", what.pending[0].ticket)
            if departure.place is None:
                self.lines.settled(what)
                self.sent.append((what.queue, Place(NOBODYS, ""), list(what.in_buffer.tickets)))
                continue
            what.avoid = departure.place.queue.broker_name
            self.under_way.append((what, departure.place))

    def answer(self, index: int) -> None:
        what, place = self.under_way.pop(index % len(self.under_way))
        self.placement.landed(place.queue)
        self.lines.settled(what)
        self.sent.append((what.queue, place, list(what.in_buffer.tickets)))

    def fail(self, index: int, delay: float) -> None:
        what, place = self.under_way.pop(index % len(self.under_way))
        self.placement.landed(place.queue)
        self.lines.try_again(what, self.now + delay if delay else None)


def test_single_messages_and_batches_for_one_queue_keep_their_order() -> None:
    sending = Sending()
    queue = QUEUES[0]
    sending.message(queue)
    sending.message(queue)
    sending.batch(queue)
    sending.message(queue)
    for _ in range(3):
        sending.pump()
        sending.answer(0)
    assert [numbers for _, _, numbers in sending.sent] == [[0, 1], [2], [3]]


def test_a_flood_for_one_destination_lets_the_others_through() -> None:
    sending = Sending(window=1)
    for _ in range(100):
        sending.batch(None)
    sending.message(QUEUES[0])
    sending.message(None, topic="u")
    sending.pump()
    for _ in range(6):
        sending.answer(0)
        sending.pump()
    through = {number for _, _, numbers in sending.sent for number in numbers}
    assert {100, 101} <= through


def test_a_batch_that_failed_does_not_hold_up_those_that_may_still_go() -> None:
    sending = Sending(window=1)
    for _ in range(4):
        sending.batch(None)
    sending.pump()  # one at each broker
    failed = sending.under_way[0][1].queue.broker_name
    sending.fail(0, 0.0)  # it may go to the other one alone, which is busy
    sending.pump()
    assert sorted(place.queue.broker_name for _, place in sending.under_way) == ["a", "b"]
    assert sending.under_way[-1][1].queue.broker_name == failed


def test_what_is_older_can_be_taken_out() -> None:
    sending = Sending(window=1)
    queue = QUEUES[0]
    for now, add in ((1.0, sending.batch), (2.0, sending.message), (3.0, sending.message), (4.0, sending.batch)):
        sending.now = now
        add(queue)
    sending.pump()  # the first one leaves, and the others wait for it
    older = sending.lines.take_older("t", queue.broker_name, 2.0)
    assert [[item.ticket for item in lane.pending] for lane in older if isinstance(lane, Lane)] == [[1]]
    for _ in range(3):
        sending.answer(0)
        sending.pump()
    assert [numbers for _, _, numbers in sending.sent] == [[0], [2], [3]]


DESTINATIONS = st.sampled_from([None, *QUEUES, NOBODYS])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("message"), DESTINATIONS),
        st.tuples(st.just("batch"), DESTINATIONS),
        st.tuples(st.just("answer"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 20)),
        st.tuples(st.just("fail later"), st.integers(0, 20)),
    ),
    max_size=60,
)


@settings(max_examples=300)
@given(STEPS, st.integers(1, 3))
def test_all_leave_once_and_nothing_overtakes(steps: list[tuple[str, object]], window: int) -> None:
    sending = Sending(window=window)
    for what, about in steps:
        sending.now += 0.1
        sending.lines.due(sending.now)
        if what == "message" and (about is None or isinstance(about, MessageQueue)):
            sending.message(about)
        elif what == "batch" and (about is None or isinstance(about, MessageQueue)):
            sending.batch(about)
        elif sending.under_way and isinstance(about, int):
            if what == "answer":
                sending.answer(about)
            else:
                sending.fail(about, 0.35 if what == "fail later" else 0.0)
        sending.pump()
        per_broker = Counter(place.queue.broker_name for _, place in sending.under_way)
        assert all(count <= window for count in per_broker.values())
        chosen = Counter(batch.queue for batch, _ in sending.under_way if batch.queue is not None)
        assert all(count == 1 for count in chosen.values())
    sending.now += 10.0
    sending.lines.due(sending.now)
    sending.pump()
    while sending.under_way:
        sending.answer(0)
        sending.pump()
    assert sending.lines.clear() == []
    by_queue: defaultdict[MessageQueue | None, list[int]] = defaultdict(list)
    for queue, place, numbers in sending.sent:
        assert queue is None or place.queue in (queue, NOBODYS)
        by_queue[queue] += numbers
    assert sorted(number for numbers in by_queue.values() for number in numbers) == list(range(sending.given))
    for queue, numbers in by_queue.items():
        assert queue is None or numbers == sorted(numbers)


def test_a_queue_that_nobody_has_is_told_at_once() -> None:
    sending = Sending()
    sending.message(NOBODYS)
    departure = sending.lines.next(0.0)
    assert departure is not None
    assert departure.place is None
    assert isinstance(departure.reason, Unavailable)


def test_a_burst_for_any_queue_is_divided_among_the_queues() -> None:
    sending = Sending(window=2)
    sending.lines = WaitingLines(sending.placement, batch_messages=1000, batch_bytes=1000, spread_messages=5)
    for _ in range(4):
        sending.message(None)
        sending.pump()  # all places are taken
    for _ in range(400):
        sending.message(None)
    while sending.under_way:
        sending.answer(0)
        sending.pump()
    sizes = [len(numbers) for _, _, numbers in sending.sent]
    assert sum(sizes) == 404
    assert max(sizes) == 100
    assert min(sizes[4:-1]) >= 5
    assert {place.queue for _, place, _ in sending.sent[4:8]} == set(QUEUES)


def test_what_is_bound_to_a_queue_leaves_together() -> None:
    sending = Sending()
    sending.lines = WaitingLines(sending.placement, batch_messages=1000, batch_bytes=1000, spread_messages=5)
    for _ in range(400):
        sending.message(QUEUES[0])
    sending.pump()
    assert [what.count for what, _ in sending.under_way] == [400]
