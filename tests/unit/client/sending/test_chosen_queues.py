"""The queues among which selectors choose: a broker that dies must not move the keys of the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

from hypothesis import given
from hypothesis import strategies as st

from minimq.sending.chosen_queues import ChosenQueues
from minimq.sending.selectors import by_hash
from minimq_common.model import BrokerData, Message, MessageQueue, OfflineBroker, Permission, QueueData, TopicRoute

#: Write queues and permission of a broker, and whether it has a master.
Told = tuple[int, Permission, bool]
RW, READ = Permission.READ_WRITE, Permission.READ


def route(**brokers: Told) -> TopicRoute:
    return TopicRoute(
        "t",
        tuple(QueueData(name, 16, told[0], told[1]) for name, told in sorted(brokers.items())),
        {name: BrokerData("c", name, {0 if told[2] else 1: f"{name}:1"}) for name, told in brokers.items()},
    )


class OrderedQueues:
    """The queues of one topic."""

    def __init__(self) -> None:
        self._chosen = ChosenQueues()
        self._queues: Sequence[MessageQueue] = ()

    def update(self, known: TopicRoute) -> None:
        self._queues = self._chosen.of(known)

    def queues(self) -> Sequence[MessageQueue]:
        return self._queues


BROKERS = {"a": 3, "b": 1, "c": 4}
ROUTED = ["well", "headless", "offline"]
#: For each moment, which brokers are in the route with a master, without one, as offline ones, or not at all.
moments = st.lists(st.fixed_dictionaries({name: st.sampled_from([*ROUTED, "unknown"]) for name in BROKERS}))


@given(moments, st.text())
def test_a_key_stays_in_its_queue_whatever_brokers_vanish_and_return(moments: list[dict[str, str]], key: str) -> None:
    memory, selector, message = OrderedQueues(), by_hash(), Message("t", b"x", keys=[key])
    memory.update(route(**{name: (count, RW, True) for name, count in BROKERS.items()}))
    place = selector(memory.queues(), message)
    for run, moment in enumerate(moments, start=1):
        memory.update(at(moment, run))
        assert selector(memory.queues(), message) == place
        if "unknown" not in moment.values():  # a producer that starts now agrees
            assert selector(ChosenQueues().of(at(moment)), message) == place


def test_a_queue_is_gone_once_the_run_that_reported_it_does_not() -> None:
    memory = ChosenQueues()
    offline = at({"a": "well", "b": "offline", "c": "unknown"}, run=2)
    without = at({"a": "well", "b": "unknown", "c": "unknown"}, run=2)
    counts = [len(memory.of(known)) for known in (at(dict.fromkeys(BROKERS, "well"), run=1), offline, without)]
    assert counts == [8, 8, 7]  # the second run never reported c


def at(moment: dict[str, str], run: int = 0) -> TopicRoute:
    online = {name: (BROKERS[name], RW, how == "well") for name, how in moment.items() if how in ROUTED[:2]}
    gone = [name for name, how in moment.items() if how == "offline"]
    since = datetime(2026, 1, 1, tzinfo=UTC)
    offline = [
        OfflineBroker("default", name, {}, since, stopped=True, queues=9, write_queues=BROKERS[name]) for name in gone
    ]
    return replace(route(**online), offline=tuple(offline), run=run)


told = st.tuples(st.integers(0, 4), st.sampled_from(Permission), st.booleans())


@given(st.lists(st.dictionaries(st.sampled_from("abc"), told)))
def test_what_a_registered_broker_reports_last_counts(routes: list[dict[str, Told]]) -> None:
    """Each route is that of another name server."""
    memory = OrderedQueues()
    expected: dict[str, int] = {}
    for run, brokers in enumerate(routes):
        memory.update(replace(route(**brokers), run=run))
        for name, (count, permission, _) in brokers.items():
            expected[name] = count if Permission.WRITE in permission else 0
    queues = [MessageQueue("t", name, number) for name, count in expected.items() for number in range(count)]
    assert list(memory.queues()) == sorted(queues)


def test_a_change_is_remembered_though_nothing_is_sent_meanwhile() -> None:
    memory = ChosenQueues()
    both, alone = route_of("a", "b"), replace(route_of("a"), run=1)
    before = memory.of(both)
    memory.route_changed(route_of("a", "b", closed="b"))
    memory.route_changed(alone)  # the broker was emptied, and then it left
    assert len(memory.of(alone)) == len(before) // 2


def route_of(*brokers: str, closed: str = "") -> TopicRoute:
    return TopicRoute(
        "t",
        tuple(QueueData(name, 2, 2, Permission.READ if name == closed else Permission.READ_WRITE) for name in brokers),
        {name: BrokerData("default", name, {0: f"{name}:1"}) for name in brokers},
    )
