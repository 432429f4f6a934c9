"""Reports of an offset reset, and its effect on in-flight deliveries."""

from __future__ import annotations

from typing import Any

import pytest

from minimq.consuming.queue_decisions import OffsetReset
from minimq.consuming.received import EncodedRecords, ReceivedBatch, ReceivedMessage
from minimq.features.listeners.in_flight import InFlight, InFlightLimits
from minimq_common.model import MessageQueue
from support.batches import encode, one
from support.cases import for_each

QUEUE = MessageQueue("t", "broker-a", 0)


@for_each(
    ("reset", "text"),
    [
        (
            OffsetReset(QUEUE, 3, 8, 8, 20),
            "offset 3 of queue t/broker-a/0 is no longer stored: 5 messages were deleted, continuing at 8",
        ),
        (
            OffsetReset(QUEUE, 3, 20, 8, 20),
            "offset 3 of queue t/broker-a/0 is no longer stored: 5 messages were deleted and 12 skipped, continuing "
            "at 20",
        ),
        (
            OffsetReset(QUEUE, 30, 20, 8, 20),
            "offset 30 of queue t/broker-a/0 does not exist, the queue ends at 20: continuing at 20",
        ),
    ],
)
def test_it_says_what_happened(reset: OffsetReset, text: str) -> None:
    assert str(reset) == text


# ---- what listeners have in flight ------------------------------------------------------------------

#: Deliveries only remember it.
SOURCE: Any = None


def messages(first: int, count: int) -> list[ReceivedMessage]:
    batch = encode([one(body=b"%d" % number) for number in range(first, first + count)])
    return ReceivedBatch(QUEUE, EncodedRecords(first, 0, 0, count, batch)).messages(first)


@pytest.mark.parametrize(("end", "again"), [(12, 10), (8, 8)])
def test_what_is_in_flight_of_a_queue_that_has_shrunk_is_read_again(end: int, again: int) -> None:
    in_flight = InFlight(SOURCE, InFlightLimits(5, 1 << 20, 100), one_at_a_time=False)
    in_flight.start(QUEUE, 10)
    delivery = in_flight.take(messages(10, 5))
    assert in_flight.blocked == {QUEUE}
    assert in_flight.start_over(QUEUE, end) == again
    assert in_flight.blocked == set()
    assert not in_flight.is_current(delivery)
    assert in_flight.offsets({}) == {QUEUE: again}
