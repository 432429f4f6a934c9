"""The queues of each member: the promises of every strategy, and the two that deal queues out by place."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.rebalance import AllocationStrategy, allocate_group, allocation_strategy, name_of
from minimq.rebalance.strategies import (
    Averagely,
    AveragelyByCircle,
    ByConfig,
    ConsistentHash,
    Designated,
    MachineRoom,
    MachineRoomNearby,
    MetaQ,
    MetaQConsistentHash,
    Sticky,
)
from minimq.rebalance.strategy import allocate_everyone, uses_owners
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from support.cases import for_each
from support.shares import members, numbers, queues, shares, some_members, some_queues

#: Those that give every queue to somebody, whatever the queues and the members are.
COMPLETE = [
    Averagely(),
    AveragelyByCircle(),
    ConsistentHash(virtual_nodes=3),
    MachineRoomNearby(),
    MachineRoomNearby(Sticky()),
    MetaQ(),
    MetaQConsistentHash(virtual_nodes=3),
    Sticky(),
    Designated(["north@c1", "c0"], fall_back=True),
]
#: Those that may leave some to nobody.
PARTIAL = [
    ByConfig(queues(4, "c", "north@a", topic="t0")),
    Designated(["north@c1", "c0"]),
    Designated(["north@c1", "c0"], Sticky()),
    MachineRoom(["north", "south"]),
]
EVERY = COMPLETE + PARTIAL


def every(*strategies: AllocationStrategy) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("strategy", strategies or EVERY, ids=name_of)


# ---- By place -----------------------------------------------------------------------------------


@for_each(
    ("count", "size", "blocks", "circle"),
    [
        (8, 3, "0 1 2|3 4 5|6 7", "0 3 6|1 4 7|2 5"),
        (8, 4, "0 1|2 3|4 5|6 7", "0 4|1 5|2 6|3 7"),
        (10, 4, "0 1 2|3 4 5|6 7|8 9", "0 4 8|1 5 9|2 6|3 7"),
        (7, 3, "0 1 2|3 4|5 6", "0 3 6|1 4|2 5"),
        (5, 2, "0 1 2|3 4", "0 2 4|1 3"),
        (3, 5, "0|1|2|-|-", "0|1|2|-|-"),
        (1, 3, "0|-|-", "0|-|-"),
        (16, 5, "0 1 2 3|4 5 6|7 8 9|10 11 12|13 14 15", "0 5 10 15|1 6 11|2 7 12|3 8 13|4 9 14"),
        (9, 2, "0 1 2 3 4|5 6 7 8", "0 2 4 6 8|1 3 5 7"),
        (4, 4, "0|1|2|3", "0|1|2|3"),
        (1, 1, "0", "0"),
    ],
)
def test_blocks_and_circles(count: int, size: int, blocks: str, circle: str) -> None:
    assert numbers(shares(Averagely(), queues(count), members(size))) == blocks
    assert numbers(shares(MetaQ(), queues(count), members(size))) == blocks
    assert numbers(shares(AveragelyByCircle(), queues(count), members(size))) == circle


@every(Averagely(), AveragelyByCircle(), MetaQ(), Sticky())
@given(count=st.integers(1, 60), size=st.integers(1, 20))
@settings(max_examples=50)
def test_shares_are_even(strategy: AllocationStrategy, count: int, size: int) -> None:
    lengths = [len(share) for share in shares(strategy, queues(count), members(size))]
    assert max(lengths) - min(lengths) <= 1


# ---- What holds for every strategy --------------------------------------------------------------


@every(*COMPLETE)
@given(items=some_queues, group=some_members)
@settings(max_examples=50)
def test_each_queue_goes_to_one_member(
    strategy: AllocationStrategy, items: list[MessageQueue], group: list[str]
) -> None:
    assert sorted(queue for share in shares(strategy, items, group) for queue in share) == sorted(items)
    found = allocate_everyone(strategy, "g", items, group, {})
    assert sorted(queue for share in found.values() for queue in share) == sorted(items)


@every()
@given(items=some_queues, group=some_members, data=st.data())
@settings(max_examples=50)
def test_the_answer_is_the_same_in_any_order_and_sorted(
    strategy: AllocationStrategy, items: list[MessageQueue], group: list[str], data: st.DataObject
) -> None:
    other_items = data.draw(st.permutations(items)) + items[:1]  # one of them twice
    other_group = data.draw(st.permutations(group)) + group[:1]
    owners = data.draw(st.dictionaries(st.sampled_from(items), st.sampled_from([*group, "gone"])))
    other_owners = dict(reversed(owners.items()))
    everyone = allocate_everyone(strategy, "g", items, group, owners)
    assert sorted(everyone) == sorted(group)
    for member in group:
        share = strategy.allocate("g", member, items, group)
        assert share == sorted(set(share))
        assert strategy.allocate("g", member, other_items, other_group) == share
        assert allocate_group(strategy, "g", member, other_items, other_group, other_owners) == everyone[member]
        assert everyone[member] == sorted(set(everyone[member]))


@every()
@pytest.mark.parametrize(("member", "group"), [("", ["c0"]), ("c0", [])])
def test_no_name_and_no_members_are_wrong_usage(strategy: AllocationStrategy, member: str, group: list[str]) -> None:
    with pytest.raises(InvalidArgument, match=r"no client id|no members"):
        strategy.allocate("g", member, queues(2), group)
    with pytest.raises(InvalidArgument, match=r"no client id|no members"):
        allocate_group(strategy, "g", member, queues(2), group, {})


# ---- A whole group ------------------------------------------------------------------------------


def test_classic_strategies_divide_each_topic_by_itself() -> None:
    topics = [*queues(3, topic="t1"), *queues(1, topic="t2"), *queues(1, topic="t3")]
    found = allocate_everyone(Averagely(), "g", topics, members(2), {})
    assert [[str(queue) for queue in share] for share in found.values()] == [
        ["t1/a/0", "t1/a/1", "t2/a/0", "t3/a/0"],  # the first member has what comes out uneven, of each topic
        ["t1/a/2"],
    ]
    even = allocate_everyone(Sticky(), "g", topics, members(2), {})
    assert sorted(len(share) for share in even.values()) == [2, 3]


class Nameless:
    """A strategy as a user may write it: all to the last member."""

    def allocate(
        self, group: str, member: str, queues: Sequence[MessageQueue], members: Sequence[str]
    ) -> list[MessageQueue]:
        assert {queue.topic for queue in queues} <= {queues[0].topic}, "one topic at a time"
        return list(queues) if member == members[-1] else []


def test_a_strategy_of_ones_own_needs_only_to_allocate() -> None:
    strategy: AllocationStrategy = Nameless()  # type: ignore[assignment] # a name is what it lacks
    both = [*queues(2, topic="t2"), *queues(2, topic="t1")]
    assert name_of(strategy) == "Nameless"
    assert not uses_owners(strategy)
    assert allocate_everyone(strategy, "g", both, members(2), {}) == {"c00": [], "c01": sorted(both)}


# ---- By name ------------------------------------------------------------------------------------


@for_each(
    ("name", "arguments", "kind", "told"),
    [
        ("averagely", {}, Averagely, "averagely"),
        ("averagely_by_circle", {}, AveragelyByCircle, "averagely_by_circle"),
        ("consistent_hash", {}, ConsistentHash, "consistent_hash"),
        ("consistent_hash", {"virtual_nodes": 10}, ConsistentHash, "consistent_hash(virtual_nodes=10)"),
        ("by_config", {"queues": queues(1)}, ByConfig, "by_config"),
        ("machine_room", {"rooms": ["b", "a"]}, MachineRoom, "machine_room(a, b)"),
        ("machine_room_nearby", {}, MachineRoomNearby, "machine_room_nearby"),
        ("machine_room_nearby", {"inner": "sticky"}, MachineRoomNearby, "machine_room_nearby(sticky)"),
        ("metaq", {}, MetaQ, "metaq"),
        ("metaq_consistent_hash", {}, MetaQConsistentHash, "metaq_consistent_hash"),
        ("designated", {"consumers": ["x"]}, Designated, "designated(x)"),
        (
            "designated",
            {"consumers": ["y", "x"], "inner": AveragelyByCircle(), "fall_back": True},
            Designated,
            "designated(x, y; averagely_by_circle; fall_back)",
        ),
        ("sticky", {}, Sticky, "sticky"),
    ],
)
def test_a_name_and_arguments_make_a_strategy_which_tells_both(
    name: str, arguments: dict[str, object], kind: type[AllocationStrategy], told: str
) -> None:
    strategy = allocation_strategy(name, **arguments)
    assert type(strategy) is kind
    assert strategy.name == told


def test_an_unknown_strategy_lists_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"there are averagely, .*sticky"):
        allocation_strategy("nicely")


@for_each(
    ("name", "arguments", "message"),
    [
        ("machine_room", {}, r"'machine_room': missing a required argument: 'rooms'; it takes rooms"),
        ("by_config", {}, r"'by_config': missing .*'queues'; it takes queues"),
        ("designated", {"inner": "sticky"}, r"missing .*'consumers'; it takes consumers, inner, fall_back"),
        ("averagely", {"rooms": ["a"]}, r"'averagely': got an unexpected .*'rooms'; it takes no arguments"),
        ("consistent_hash", {"nodes": 1}, r"unexpected .*'nodes'; it takes virtual_nodes"),
        ("machine_room_nearby", {"inner": "nicely"}, r"no allocation strategy 'nicely'"),
        ("consistent_hash", {"virtual_nodes": 0}, "whole number above 0, not 0"),
        ("consistent_hash", {"virtual_nodes": "10"}, "whole number above 0, not '10'"),
        ("machine_room", {"rooms": []}, "at least one name"),
        ("machine_room", {"rooms": "north"}, "a list of names is needed, not the one string 'north'"),
        ("designated", {"consumers": ["a", ""]}, "none may be empty"),
        ("by_config", {"queues": ["t/a/0"]}, "'t/a/0' is not a MessageQueue"),
    ],
)
def test_arguments_that_do_not_fit_are_named(name: str, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidArgument, match=message):
        allocation_strategy(name, **arguments)
