"""The account of what a listener has in flight."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq import ConsumeResult, Message, MessageQueue, ReceivedMessage, RetryLater
from minimq.consuming.received import EncodedRecords, ReceivedBatch
from minimq.features.listeners.in_flight import InFlight, InFlightLimits, LeasedDelivery
from minimq.features.listeners.listener import verdict
from minimq_common.batch.builder import BatchBuilder
from minimq_common.errors import InvalidArgument
from support.cases import for_each

QUEUE = MessageQueue("orders", "broker-a", 0)
#: Deliveries only remember it.
SOURCE: Any = None


def messages(first: int, count: int, queue: MessageQueue = QUEUE) -> list[ReceivedMessage]:
    builder = BatchBuilder(1 << 20)
    builder.add([Message("orders", bytes(10))] * count)
    stored = EncodedRecords(first, 0, 0, count, builder.build(1, 1, 0))
    return ReceivedBatch(queue, stored).messages(first)


class Account:
    """An `InFlight` that reads one queue."""

    def __init__(self, *, one_at_a_time: bool = False) -> None:
        self.in_flight = InFlight(SOURCE, InFlightLimits(10, 1000, 20), one_at_a_time=one_at_a_time)
        self.in_flight.start(QUEUE, 0)

    def take(self, first: int, count: int, wanted: slice = slice(None)) -> LeasedDelivery:
        return self.in_flight.take(messages(first, count)[wanted])

    def offsets(self, position: int = 0) -> dict[MessageQueue, int]:
        return self.in_flight.offsets({QUEUE: position})


def test_queues_share_the_bytes_in_flight() -> None:
    other = MessageQueue("orders", "broker-b", 0)
    in_flight = InFlight(SOURCE, InFlightLimits(1000, 400, 1000), one_at_a_time=False)
    in_flight.start(QUEUE, 0)
    in_flight.start(other, 0)
    first = in_flight.take(messages(0, 20))
    assert (in_flight.blocked, in_flight.is_full) == ({QUEUE}, False)
    in_flight.take(messages(0, 30, other))
    assert (in_flight.blocked, in_flight.is_full) == ({QUEUE, other}, True)
    in_flight.finish(first)
    assert (in_flight.blocked, in_flight.is_full) == ({other}, False)
    in_flight.drop([other])
    in_flight.take(messages(20, 39))
    assert (in_flight.blocked, in_flight.is_full) == (set(), False)


def test_a_queue_leaves_at_the_first_message_that_is_not_finished() -> None:
    account = Account()
    delivery = account.take(0, 5)
    [*_, last] = account.in_flight.split(delivery, delivery.messages[3:])
    assert account.in_flight.leave([QUEUE]) == {QUEUE: 3}
    assert account.in_flight.leave([QUEUE]) == {}
    assert not account.in_flight.is_current(last)


class Model:
    """The same by sets of offsets: plain and slow."""

    def __init__(self) -> None:
        self.end = 0
        self.open: dict[LeasedDelivery, set[int]] = {}

    @property
    def offsets(self) -> set[int]:
        return {offset for offsets in self.open.values() for offset in offsets}

    @property
    def commit_position(self) -> int:
        return min(self.offsets, default=self.end)


#: Begin a delivery of so many, narrow one to so many, split one into its last ones, finish one, or pass so many over.
STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "begin", "narrow", "split", "finish", "pass over"]), st.integers(1, 6)),
    max_size=60,
)


@given(STEPS, st.data(), st.builds(InFlightLimits, st.integers(1, 20), st.integers(1, 200), st.integers(1, 30)))
def test_it_is_the_same_as_a_plain_model(
    steps: list[tuple[str, int]], data: st.DataObject, limits: InFlightLimits
) -> None:
    in_flight, model = InFlight(SOURCE, limits, one_at_a_time=False), Model()
    in_flight.start(QUEUE, 0)
    for what, number in steps:
        if what == "begin":
            delivery = in_flight.take(messages(model.end, number))
            model.open[delivery] = set(range(model.end, model.end + number))
            model.end += number
        elif what == "pass over":
            model.end += number
        elif model.open:
            delivery = data.draw(st.sampled_from([*model.open]))
            left = sorted(model.open.pop(delivery))[-number:]
            kept = [message for message in delivery.messages if message.queue_offset in left]
            if what == "finish":
                is_first = delivery.messages[0].queue_offset < min(model.offsets, default=model.end)
                assert in_flight.commit_position_after(delivery) == (model.commit_position if is_first else None)
                in_flight.finish(delivery)
            elif what == "split":
                model.open |= {part: {part.messages[0].queue_offset} for part in in_flight.split(delivery, kept)}
            else:
                in_flight.narrow(delivery, kept)
                model.open[delivery] = set(left)
        count = len(model.offsets)
        assert in_flight.offsets({QUEUE: model.end}) == {QUEUE: model.commit_position}
        span = model.end - model.commit_position
        assert bool(in_flight.blocked) == (count >= limits.messages or 10 * count >= limits.size or span >= limits.span)


@for_each(
    ("answer", "again", "level"),
    [
        (ConsumeResult.SUCCESS, [], None),
        (ConsumeResult.RETRY_LATER, [0, 1, 2, 3, 4], None),
        (RetryLater(), [0, 1, 2, 3, 4], None),
        (RetryLater(indexes=[3, 1, 3]), [1, 3], None),
        (RetryLater(indexes=(4,), level=2), [4], 2),
        (RetryLater(indexes=[]), [], None),
        (RetryLater(indexes=[1, 5]), [0, 1, 2, 3, 4], None),
        (None, [0, 1, 2, 3, 4], None),
        (True, [0, 1, 2, 3, 4], None),
    ],
)
def test_a_result_selects_the_messages_to_retry(answer: object, again: list[int], level: int | None) -> None:
    found, _ = verdict(answer, 5)
    assert (list(found.again), found.level) == (again, level)


def test_an_orderly_consumer_retries_from_the_first_failed_message_on() -> None:
    assert list(verdict(RetryLater(indexes=[3, 1]), 5, in_order=True)[0].again) == [1, 2, 3, 4]


@for_each(
    ("arguments", "said"),
    [
        ({"indexes": [-1]}, "-1 is not a whole number from 0 on"),
        ({"indexes": [1.0]}, "1.0 is not a whole number from 0 on"),
        ({"level": 1.5}, "1.5 is not a whole number from 0 on"),
        ({"indexes": [True]}, "True is not a whole number from 0 on"),
        ({"indexes": "12"}, "'1' is not a whole number from 0 on"),
        ({"indexes": 3}, "indexes must be a sequence of whole numbers"),
    ],
)
def test_an_answer_that_cannot_be_is_rejected(arguments: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        RetryLater(**arguments)
