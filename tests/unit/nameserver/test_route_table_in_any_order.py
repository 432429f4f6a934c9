"""Any registrations in any order: what the table says afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Sequence, Set
from typing import NamedTuple

from hypothesis import given, settings
from hypothesis import strategies as st

from minimq_common.errors import BrokerConflict
from minimq_common.model import Permission, QueueData, TopicRoute
from minimq_nameserver.route_table import BrokerState, RouteTable

RW, READ, WRITE = Permission.READ_WRITE, Permission.READ, Permission.WRITE
NAMES = ["broker-a", "broker-b", "broker-c"]
TOPICS = ["t1", "t2", "t3"]


class Step(NamedTuple):
    """Something that happens to the table."""

    action: str
    number: int  # of the broker: its address
    name: str
    broker_id: int
    topics: frozenset[tuple[str, Permission]]
    permission: Permission
    version: int

    @property
    def state(self) -> BrokerState:
        return BrokerState(
            cluster="default",
            broker_name=self.name,
            broker_id=self.broker_id,
            address=f"host-{self.number}:1",
            data_version=self.version,
            permission=self.permission,
            topics={topic: QueueData(self.name, 4, 4, permission) for topic, permission in sorted(self.topics)},
            replica_id=self.number,
            run=10 * self.number + NAMES.index(self.name),
        )


PERMISSIONS = st.sampled_from([RW, READ, WRITE])
STEPS = st.builds(
    Step,
    st.sampled_from(["register", "register", "register", "again", "heartbeat", "leave", "wait"]),
    st.integers(1, 6),
    st.sampled_from(NAMES),
    st.integers(0, 2),
    st.dictionaries(st.sampled_from(TOPICS), PERMISSIONS).map(lambda topics: frozenset(topics.items())),
    PERMISSIONS,
    st.integers(1, 5),
)


class World:
    """A table, and the stream of each broker, as a name server has them."""

    def __init__(self) -> None:
        self.table = RouteTable(expire_after_s=10)
        self.now = 0.0
        self._numbers = itertools.count(1)
        self.streams: dict[int, int] = {}  # broker -> session
        self.states: dict[int, BrokerState] = {}  # session -> what it registered, while it is in the table
        self.seen: dict[int, float] = {}

    def do(self, step: Step) -> Set[str]:
        """Return the topics that are said to have changed."""
        if step.action == "wait":
            self.now += 4
            change = self.table.expire(self.now)
            self._end([session for session, _ in change.ended])
            assert all(self.now - self.seen[session] < 10 for session in self.states)
            return change.topics
        session = self.streams.get(step.number)
        if step.action == "leave":
            return self._leave(step.number)
        if step.action == "heartbeat":
            if session in self.states and self.table.heartbeat(session, self.states[session].data_version, self.now):
                self.seen[session] = self.now
            return frozenset()
        if session is None or step.action == "register":
            session = next(self._numbers)  # a new stream, while the one it had may not be known to have ended
        elif session in self.states and self.states[session].broker_name != step.name:
            return frozenset()
        return self._register(step, session)

    def _register(self, step: Step, session: int) -> Set[str]:
        before = dict(self.states)
        try:
            change = self.table.register(session, step.state, self.now)
        except BrokerConflict:
            assert any(conflict.address == step.state.address for conflict in self.table.conflicts.recent(self.now))
            change = self.table.unregister(session, self.now)  # as the end of its stream does
            assert change.topics == frozenset() or session in before
            self._end([session])
            return change.topics
        self._end([ended for ended, _ in change.ended])
        self.streams[step.number] = session
        self.states[session] = step.state
        self.seen[session] = self.now
        place = step.state.broker_name, step.state.address
        assert all((seen.broker_name, seen.address) != place for seen in self.table.conflicts.recent(self.now))
        return change.topics

    def _leave(self, number: int) -> Set[str]:
        session = self.streams.get(number, 0)
        change = self.table.unregister(session, self.now)
        self._end([session])
        return change.topics

    def _end(self, sessions: Sequence[int]) -> None:
        for session in sessions:
            self.states.pop(session, None)
            for number, stream in list(self.streams.items()):
                if stream == session:
                    del self.streams[number]

    def routes(self) -> dict[str, TopicRoute | None]:
        return {topic: self.table.route(topic) for topic in TOPICS}


def expected_queues(states: Sequence[BrokerState], topic: str) -> list[QueueData]:
    """Say from the brokers alone where a topic is."""
    queues = []
    for name in NAMES:
        replicas = [state for state in states if state.broker_name == name]
        if not replicas:
            continue
        leader = min(replicas, key=lambda state: state.broker_id)
        data = leader.topics.get(topic)
        if data is not None:
            queues.append(QueueData(name, data.read_queues, data.write_queues, data.permission & leader.permission))
    return queues


@settings(deadline=None, max_examples=100)
@given(st.lists(STEPS, max_size=25))
def test_routes_follow_from_the_brokers_alone(steps: list[Step]) -> None:
    world = World()
    for step in steps:
        before = world.routes()
        changed = world.do(step)
        after = world.routes()
        assert changed == {topic for topic in TOPICS if before[topic] != after[topic]}
        states = list(world.states.values())
        places = [(state.broker_name, state.broker_id) for state in states]
        assert len(set(places)) == len(places) == len({state.address for state in states})
        for topic, route in after.items():
            queues = expected_queues(states, topic)
            assert (list(route.queues) if route else []) == queues
            for name, broker in route.brokers.items() if route else ():
                assert dict(broker.addresses) == {
                    state.broker_id: state.address for state in states if state.broker_name == name
                }
        carried = {topic for topic in TOPICS if expected_queues(states, topic)}
        assert set(world.table.topics()) == carried
        assert len(world.table.conflicts.recent(world.now)) <= 20
    for number in range(1, 7):
        world.do(Step("leave", number, NAMES[0], 0, frozenset(), RW, 1))
    world.now += 20
    world.table.expire(world.now)
    assert (world.table.brokers(), list(world.table.topics()), world.table._told) == ([], [], {})


@settings(deadline=None, max_examples=100)
@given(
    st.lists(STEPS, max_size=12, unique_by=(lambda step: step.number, lambda step: (step.name, step.broker_id))),
    st.data(),
)
def test_registrations_in_any_order_give_the_same_table(places: list[Step], data: st.DataObject) -> None:
    winners = [step._replace(version=9) for step in places]
    # Rivals want the place of a winner, at another address and with older data: they lose whether they come first or
    # last, and also against each other the larger version counts.
    rivals = [
        winner._replace(number=10 + number, version=data.draw(st.integers(1, 8)), topics=frozenset({("t1", READ)}))
        for number, winner in enumerate(data.draw(st.lists(st.sampled_from(winners), max_size=6)) if winners else ())
    ]
    everybody: list[Step] = data.draw(st.permutations([*winners, *rivals]))
    table, straight = RouteTable(expire_after_s=10), RouteTable(expire_after_s=10)
    for session, step in enumerate(everybody):
        try:
            table.register(session, step.state, now=0)
            assert table.heartbeat(session, step.version, now=1)
        except BrokerConflict:
            assert step in rivals
    for session, step in enumerate(winners):
        straight.register(session, step.state, now=0)
    assert table.brokers() == straight.brokers()
    assert [table.route(topic) for topic in TOPICS] == [straight.route(topic) for topic in TOPICS]
    assert {conflict.address for conflict in table.conflicts.recent(1)} == {step.state.address for step in rivals}
