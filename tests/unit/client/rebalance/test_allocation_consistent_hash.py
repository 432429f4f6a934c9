"""Members and queues on a ring of hashes."""

from __future__ import annotations

import hashlib

from hypothesis import given, settings

from minimq.rebalance.strategies import ConsistentHash, MetaQConsistentHash
from minimq_common.model import MessageQueue
from support.cases import for_each
from support.shares import numbers, queues, shares, some_members, some_queues


def cids(count: int) -> list[str]:
    return [f"CID-{number}" for number in range(count)]


@for_each("kind", [ConsistentHash, MetaQConsistentHash])
@for_each(
    ("topic", "broker", "count", "group", "virtual_nodes", "expected"),
    [
        ("topic_test", "brokerName", 6, cids(2), 10, "1 3 4 5|0 2"),
        ("topic_test", "brokerName", 8, cids(3), 10, "1 6 7|2|0 3 4 5"),
        ("topic_test", "brokerName", 8, ["CID-1", "CID-2"], 10, "1 2 6 7|0 3 4 5"),
        ("topic_test", "brokerName", 8, [*cids(3), "CID-NEW"], 10, "1 6 7|2|0 3 4 5|-"),
        ("topic_test", "brokerName", 20, cids(10), 3, "3 5 8 18 19|-|4|6 7 9|-|10 11 15 17|-|0 2 12|1 13 14|16"),
        ("TopicTest", "broker-a", 8, cids(3), 10, "3 5 6|2 4 7|0 1"),
    ],
)
def test_shares_are_those_of_rocketmq(
    kind: type[ConsistentHash], topic: str, broker: str, count: int, group: list[str], virtual_nodes: int, expected: str
) -> None:
    assert numbers(shares(kind(virtual_nodes), queues(count, broker, topic=topic), group)) == expected


def test_the_owner_is_the_next_point_of_the_ring() -> None:
    def point(text: str) -> int:
        return int(hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8], 16)

    assert point("CID-0-0") == 1_900_518_137
    assert point("MessageQueue [topic=topic_test, brokerName=brokerName, queueId=0]") == 2_171_879_703
    every = queues(40, "brokerName", topic="topic_test")
    found = dict(zip(cids(4), shares(ConsistentHash(2), every, cids(4)), strict=True))
    wrapped = 0
    for queue in every:
        own = point(f"MessageQueue [topic=topic_test, brokerName=brokerName, queueId={queue.queue_id}]")
        points = {point(f"{member}-{node}"): member for member in cids(4) for node in (0, 1)}
        after = [place for place in points if place >= own]
        wrapped += not after
        assert queue in found[points[min(after or points)]]
    assert wrapped, "no queue lies behind the last point of the ring"


@given(items=some_queues, group=some_members)
@settings(max_examples=50)
def test_who_comes_takes_queues_and_no_others_move(items: list[MessageQueue], group: list[str]) -> None:
    strategy = ConsistentHash(5)
    for member in group:
        before = set(strategy.allocate("g", member, items, group))
        after = set(strategy.allocate("g", member, items, [*group, "newcomer"]))
        taken = set(strategy.allocate("g", "newcomer", items, [*group, "newcomer"]))
        assert after == before - taken


def test_many_virtual_nodes_make_shares_more_even() -> None:
    def largest(virtual_nodes: int) -> int:
        found = shares(ConsistentHash(virtual_nodes), queues(250, "a", "b", "c", "d"), cids(10))
        return max(len(share) for share in found)

    default = max(len(share) for share in shares(ConsistentHash(), queues(250, "a", "b", "c", "d"), cids(10)))
    assert default == largest(200)
    assert default < 140 < largest(10)
