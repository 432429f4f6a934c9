"""The decisions of the broker: leases, groups and waiters, as tables and as properties."""

from __future__ import annotations

from minimq_broker.core.leases import LeaseKey
from minimq_broker.core.long_poll import LongPoll
from minimq_broker.core.state import QueueKey

KEY = LeaseKey("g", QueueKey(1, 0))
OTHER = LeaseKey("g", QueueKey(1, 1))
FIRST = 7 << 32


# ---- waiters ------------------------------------------------------------------------------------


def test_an_arrival_wakes_the_waiters_of_its_queue_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    red, green = QueueKey(1, 0), QueueKey(1, 1)
    for queue, waiter in ((red, "a"), (red, "b"), (green, "c"), (red, "a")):
        waiting.add(queue, waiter)

    assert len(waiting) == 3
    assert waiting.arrived(red) == {"a", "b"}
    assert waiting.arrived(red) == set()
    assert waiting.arrived(QueueKey(9, 9)) == set()
    assert len(waiting) == 1
    waiting.remove(green, "c")
    waiting.remove(green, "c")
    waiting.remove(red, "a")
    assert len(waiting) == 0


def test_all_are_woken_at_once() -> None:
    waiting: LongPoll[str] = LongPoll()
    assert waiting.all() == set()
    waiting.add(QueueKey(1, 0), "a")
    waiting.add(QueueKey(1, 1), "a")
    waiting.add(QueueKey(2, 0), "b")
    assert waiting.all() == {"a", "b"}
    assert len(waiting) == 0
