"""The targets of batches: queues in turn, windows, brokers that are left out, and queues chosen by the caller."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.connection.broker_troubles import BrokerTroubles
from minimq.sending.pending_batch import Target
from minimq.sending.producer_options import ProducerOptions
from minimq.sending.queue_selector import QueueSelector
from minimq_common.errors import MinimqError, NoPermission, QueueNotFound, StoreFull, SystemBusy, Unavailable
from minimq_common.model import BrokerData, MessageQueue, Permission, QueueData, TopicRoute
from support.cases import for_each


class Routes:
    """Routes that a test sets."""

    def __init__(self, *brokers: str, queues: int = 2) -> None:
        self.set(*brokers, queues=queues)

    def set(
        self, *brokers: str, queues: int = 2, permission: Permission = Permission.READ_WRITE, broker_id: int = 0
    ) -> None:
        self._route = TopicRoute(
            "t",
            tuple(QueueData(name, queues, queues, permission) for name in brokers),
            {name: BrokerData("default", name, {broker_id: f"{name}:1"}) for name in brokers},
        )

    def known(self, topic: str) -> TopicRoute | None:
        return self._route if topic == "t" else None


class Selector(QueueSelector):
    """A selector that knows of failures as its client does."""

    def __init__(self, routes: Routes, seed: int = 17, **options: Any) -> None:
        self.health = BrokerTroubles()
        super().__init__(routes.known, ProducerOptions(**options), random.Random(seed), self.health)

    def fail(self, broker: str, error: MinimqError, now: float = 0.0, took_s: float = 0.0) -> None:
        self.failed(Target(MessageQueue("t", broker, 0), f"{broker}:1"), error, took_s, now)


def selector_of(routes: Routes, **options: Any) -> Selector:
    return Selector(routes, **options)


def brokers_taken(selector: QueueSelector, count: int, now: float = 0.0, avoid: str | None = None) -> Counter[str]:
    """Take and give back places one after the other; count them by broker."""
    taken: Counter[str] = Counter()
    for _ in range(count):
        found = selector.take("t", None, avoid, False, now)
        assert found is not None
        selector.release(found)
        taken[found.queue.broker_name] += 1
    return taken


def answered(selector: QueueSelector, broker: str, latency_s: float, now: float) -> None:
    """Take a place at a broker, which answers in that time."""
    target = selector.take("t", MessageQueue("t", broker, 0), None, False, now)
    assert target is not None
    selector.release(target, latency_s, now)


@for_each(
    ("error", "avoided"),
    [
        (Unavailable("gone"), True),
        (StoreFull("full"), True),
        (SystemBusy("busy", retry_after_s=0.5), True),
        (NoPermission("not now"), False),
        (QueueNotFound("not here"), False),
    ],
)
def test_a_broker_is_left_out_after_an_error_that_speaks_against_it(error: MinimqError, avoided: bool) -> None:
    selector = selector_of(Routes("a", "b"))
    selector.fail("a", error, 0.0)
    assert ("a" not in brokers_taken(selector, 20, now=9.9)) is avoided
    assert [exclusion.broker_name for exclusion in selector.avoided(9.9)] == (["a"] if avoided else [])
    selector.health.answers("a:1")
    assert brokers_taken(selector, 20, now=10.1) == {"a": 10, "b": 10}


def test_many_producers_begin_at_different_queues() -> None:
    firsts = set()
    for seed in range(40):
        found = Selector(Routes("a", "b"), seed).take("t", None, None, False, 0.0)
        assert found is not None
        firsts.add(found.queue)
    assert len(firsts) == 4


@for_each(
    ("queue", "permission", "reason"),
    [
        (MessageQueue("t", "b", 0), Permission.READ_WRITE, Unavailable),
        (MessageQueue("t", "a", 2), Permission.READ_WRITE, QueueNotFound),
        (MessageQueue("t", "a", 0), Permission.READ, NoPermission),
        (None, Permission.READ, NoPermission),
    ],
)
def test_where_there_is_no_place_the_reason_is_told(
    queue: MessageQueue | None, permission: Permission, reason: type[MinimqError]
) -> None:
    routes = Routes()
    routes.set("a", permission=permission)
    with pytest.raises(reason):
        selector_of(routes).take("t", queue, None, False, 0.0)


def test_a_master_that_is_not_elected_yet_is_no_matter_of_permission() -> None:
    routes = Routes()
    routes.set("a", permission=Permission.READ, broker_id=1)
    with pytest.raises(Unavailable, match="no master of a is registered"):
        selector_of(routes).take("t", None, None, False, 0.0)


def test_brokers_of_near_machine_rooms_are_preferred() -> None:
    routes = Routes("east@a", "east@b", "west@c")
    selector = selector_of(routes, machine_rooms=["east"])
    assert brokers_taken(selector, 20) == {"east@a": 10, "east@b": 10}
    selector.fail("east@a", Unavailable("gone"), 0.0)
    assert brokers_taken(selector, 20) == {"east@b": 20}
    selector.fail("east@b", Unavailable("gone"), 0.0)
    assert brokers_taken(selector, 20) == {"west@c": 20}
    routes.set("west@c")
    assert brokers_taken(selector, 4) == {"west@c": 4}
    queue = MessageQueue("t", "west@c", 1)
    assert selector.take("t", queue, None, False, 0.0) == Target(queue, "west@c:1")


STEPS = st.lists(
    st.tuples(st.sampled_from("abc"), st.sampled_from(["fast", "slow", "gone", "full", "answers"]), st.floats(0, 5))
)


@given(STEPS, st.sampled_from([None, "a", "b"]))
def test_no_sequence_of_failures_leaves_nothing_to_try(steps: list[tuple[str, str, float]], avoid: str | None) -> None:
    selector = selector_of(Routes("a", "b", "c"))
    now = 0.0
    for broker, what, later in steps:
        now += later
        match what:
            case "fast":
                answered(selector, broker, 0.01, now)
            case "slow":
                answered(selector, broker, 4.0, now)
            case "gone":
                selector.fail(broker, Unavailable("gone"), now)
            case "full":
                selector.fail(broker, StoreFull("full"), now)
            case _:
                selector.health.answers(f"{broker}:1")
        assert brokers_taken(selector, 1, now=now, avoid=avoid)
