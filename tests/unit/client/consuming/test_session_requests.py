"""Statements about many queues are split into requests; when an ended session is opened again, and how all end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from minimq.connection.connection import Connection
from minimq.consuming import broker_sessions
from minimq.consuming.consumer import check_subscriptions
from minimq.consuming.message_filter import MessageFilter
from minimq_common.errors import InvalidArgument, MinimqError, SystemBusy, Unavailable


def names(queues: object) -> list[tuple[str, int]]:
    return [(item.topic, item.queue_id) for item in queues]  # type: ignore[attr-defined]


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


def sessions_to(names: list[str], master_of: Callable[[str], None] = lambda _: None) -> broker_sessions.BrokerSessions:
    no = cast("Any", lambda *_: None)
    made = broker_sessions.BrokerSessions(cast("Connection", None), master_of, no, no, no, no, no, heartbeat_s=10.0)
    made.add(names)
    return made


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
