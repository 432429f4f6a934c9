"""When a consumer goes on with what it has of a queue, though the lease is another one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from minimq import MessageQueue
from minimq.receiving.consumer_core import ConsumerCore
from minimq.receiving.consumer_options import ConsumerOptions
from minimq.receiving.member_state import Grant
from minimq.routes.read_places import ReadPlaces
from minimq.routes.routing import RouteCache
from minimq.transport.broker_link import BrokerLinks

QUEUE = MessageQueue("orders", "broker-a", 0)
#: Nobody is there: nothing is fetched.
NOWHERE = "127.0.0.1:9"
#: Of two terms of a broker.
FIRST, SECOND = 1 << 32, 2 << 32


@pytest.fixture
def core() -> Iterator[ConsumerCore]:
    links = BrokerLinks()
    routes = RouteCache([NOWHERE])
    made = ConsumerCore(ReadPlaces(routes, links), links, "g", "a", ConsumerOptions(), lambda *_: None)
    made.start(QUEUE, Grant(FIRST + 1, offset=10, topic_id=7, address=NOWHERE))
    yield made
    made.close()
    links.close()
    routes.close()


@pytest.mark.parametrize(
    ("epoch", "offset", "topic_id", "goes_on"),
    [
        (FIRST + 1, 10, 7, True),
        (FIRST + 1, 3, 7, True),  # it has committed less than it has handed out
        (SECOND + 1, 10, 7, True),  # its broker serves groups anew
        (SECOND + 1, 3, 7, True),
        (SECOND + 1, 11, 7, False),  # somebody else was further meanwhile
        (FIRST + 2, 10, 7, False),  # its broker had another owner for it, or was told to give it another place
        (SECOND + 1, 10, 8, False),  # the topic was made anew
    ],
)
def test_a_queue_goes_on_unless_somebody_else_may_have_read_it(
    core: ConsumerCore, epoch: int, offset: int, topic_id: int, goes_on: bool
) -> None:
    assert core.renew(QUEUE, Grant(epoch, offset, topic_id, address=NOWHERE)) == goes_on
    assert core.positions() == {QUEUE: 10}


def test_a_queue_that_is_not_read_does_not_go_on(core: ConsumerCore) -> None:
    core.stop([QUEUE])
    assert not core.renew(QUEUE, Grant(FIRST + 1, 10, 7, address=NOWHERE))
