"""Statements about many queues are split into requests; when an ended session is opened again, and how all end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar, cast

import pytest

from minimq.connection.connection import Connection
from minimq.consuming import broker_sessions
from minimq.consuming.assignment import InitialOffsets
from minimq.consuming.consumer import check_subscriptions, new_client_id
from minimq.consuming.consumer_options import ConsumerOptions
from minimq.consuming.member_state import ReleaseLease, RequestLease, StateSaved
from minimq.consuming.message_filter import MessageFilter
from minimq.rebalance import allocation_strategy
from minimq_common.errors import InvalidArgument, MinimqError, SystemBusy, Unavailable
from minimq_common.model import MessageQueue
from minimq_common.names import check_client_id
from minimq_common.wire.bound_check import check_bounds
from minimq_proto.v1 import broker_pb2

MEMBERSHIP = broker_sessions.Membership("g", "c", {"t": ""}, broker_pb2.StartPosition())
QUEUES = [MessageQueue(f"t{number % 7}", "broker-a", number) for number in range(2_500)]


def names(queues: object) -> list[tuple[str, int]]:
    return [(item.topic, item.queue_id) for item in queues]  # type: ignore[attr-defined]


def test_what_is_held_is_said_in_parts() -> None:
    expected = names(QUEUES)
    joined, *more = broker_sessions.join(MEMBERSHIP, allocation_strategy("averagely"), ConsumerOptions(), QUEUES)
    told = [joined.join.held, *(request.holding.queues for request in more)]
    assert [len(part) for part in told] == [1_000, 1_000, 500]
    assert [item for part in told for item in names(part)] == expected
    assert all(request.holding.adds for request in more)

    requests = list(broker_sessions.holding("g", QUEUES))
    assert [request.holding.adds for request in requests] == [False, True, True]
    assert [item for request in requests for item in names(request.holding.queues)] == expected
    assert [len(request.holding.queues) for request in broker_sessions.holding("g", [])] == [0]


@pytest.mark.parametrize("kind", [RequestLease, ReleaseLease, StateSaved])
def test_queues_are_asked_for_and_given_back_in_parts(kind: type[RequestLease | ReleaseLease | StateSaved]) -> None:
    steps = [kind(queue, 0) for queue in QUEUES]
    told = [request for _, request in broker_sessions.of_queues("g", steps, InitialOffsets(), 0.0)]
    parts = [getattr(request, str(request.WhichOneof("action"))).queues for request in told]
    assert [len(part) for part in parts] == [1_000, 1_000, 500]
    assert [item for part in parts for item in names(part)] == names(QUEUES)
    for request in told:
        check_bounds(request)


def test_what_brokers_would_not_take_is_rejected_before_it_is_sent() -> None:
    some = {"t": MessageFilter(["paid", "refunded"])}
    assert check_subscriptions("g", some) is some
    with pytest.raises(InvalidArgument, match=r"filter of topic 't' has 1001 tags, the limit is 1000"):
        check_subscriptions("g", {"t": MessageFilter([f"tag{number}" for number in range(1_001)])})
    long = MessageFilter([f"{number:0200}" for number in range(400)])
    with pytest.raises(InvalidArgument, match=r"filter of topic 't' has 81596 characters, the limit is 65536"):
        check_subscriptions("g", {"t": long})
    wide = MessageFilter([f"{number:0200}" for number in range(300)])
    with pytest.raises(InvalidArgument, match="characters, the limit of one group is 262144"):
        check_subscriptions("g", {f"t{number}": wide for number in range(5)})
    with pytest.raises(InvalidArgument, match="1025 topics are subscribed to, the limit of one consumer is 1024"):
        check_subscriptions("g", {f"t{number}": MessageFilter() for number in range(1_025)})


def test_client_ids_have_a_length() -> None:
    assert check_client_id(new_client_id())
    with pytest.raises(InvalidArgument, match="the client id has 513 characters, the limit is 512"):
        check_client_id("c" * 513)


def sessions_to(names: list[str], master_of: Callable[[str], None] = lambda _: None) -> broker_sessions.BrokerSessions:
    no = cast("Any", lambda *_: None)
    made = broker_sessions.BrokerSessions(cast("Connection", None), master_of, no, no, no, no, no, heartbeat_s=10.0)
    made.add(names)
    return made


class HangingSession:
    """A session that does not end; records what is called."""

    calls: ClassVar[list[str]] = []

    def send(self, request: object) -> None:
        self.calls.append("send")

    def finish(self) -> None:
        self.calls.append("finish")

    async def wait_ended(self, timeout_s: float) -> bool:
        self.calls.append("wait")
        await asyncio.sleep(0)
        self.calls.append("waited")
        return False

    def cancel(self) -> None:
        self.calls.append("cancel")


def test_all_brokers_are_left_at_once() -> None:
    sessions = sessions_to(["a", "b"])
    for broker in sessions._brokers.values():
        broker.session = cast("Any", HangingSession())
    asyncio.run(sessions.close(broker_pb2.SessionRequest()))
    steps = ["send", "finish"], ["wait"], ["waited"], ["cancel"]
    assert HangingSession.calls == [call for step in steps for call in 2 * step]


@pytest.mark.parametrize(
    ("error", "again_at"), [(Unavailable("gone"), 0.2), (SystemBusy("full", retry_after_s=0.9), 0.9)]
)
def test_a_broker_is_not_asked_for_a_session_sooner_than_it_wants(error: MinimqError, again_at: float) -> None:
    asked_at: list[float] = []
    now = 0.0

    def master_of(_: str) -> None:
        asked_at.append(now)

    sessions = sessions_to(["a"], master_of)
    for step in range(15):
        now = step / 10
        list(sessions.keep(now))
        if not step:
            sessions._ended(sessions._brokers["a"], 0, error)
    assert asked_at[:2] == [0.0, pytest.approx(again_at)]
