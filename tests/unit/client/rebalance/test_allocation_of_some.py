"""Strategies that choose: queues by a list, queues or members by machine room, members by name."""

from __future__ import annotations

import pytest

from minimq.rebalance import allocate_group
from minimq.rebalance.strategies import AveragelyByCircle, ByConfig, Designated, MachineRoom, MachineRoomNearby
from minimq_common.model import MessageQueue
from support.cases import for_each
from support.shares import numbers, queues, shares, with_brokers

# ---- By a list ----------------------------------------------------------------------------------


def test_listed_queues_are_left_out_until_they_are_there() -> None:
    strategy = ByConfig([*queues(4), *queues(2, topic="other")])
    assert numbers(shares(strategy, queues(2), ["c0"])) == "0 1"
    assert allocate_group(strategy, "g", "c0", [*queues(3), *queues(1, topic="other")], ["c0"], {}) == [
        MessageQueue("other", "a", 0),
        *queues(3),
    ]


# ---- By machine room ----------------------------------------------------------------------------


def rooms() -> list[MessageQueue]:
    return [MessageQueue("t", "room1@broker-a" if number < 5 else "room2@broker-b", number) for number in range(10)]


@for_each(
    ("wanted", "size", "expected"),
    [
        (["room1"], 2, "0 1 4|2 3"),
        (["room2"], 2, "5 6 9|7 8"),
        (["room1", "room2"], 3, "0 1 2 9|3 4 5|6 7 8"),
        (["room1", "room2"], 4, "0 1 8|2 3 9|4 5|6 7"),
        (["room1"], 6, "0|1|2|3|4|-"),
        (["roomX"], 2, "-|-"),
    ],
)
def test_only_queues_of_the_rooms_are_divided(wanted: list[str], size: int, expected: str) -> None:
    group = [f"CID_PREFIX{number}" for number in range(size)]
    assert numbers(shares(MachineRoom(wanted), rooms(), group)) == expected


def test_brokers_without_a_room_are_left_alone() -> None:
    assert numbers(shares(MachineRoom(["a"]), queues(2, "a", "a@a", "b@a"), ["c"])) == "0 1"


def idc() -> list[MessageQueue]:
    return [*queues(4, "IDC1-", "IDC2-"), *queues(3, "IDC3-")]


def before_dash(name: str) -> str:
    return name.partition("-")[0]


@pytest.mark.parametrize(
    ("group", "expected"),
    [
        (
            ["IDC1-CID-0", "IDC1-CID-1", "IDC2-CID-0"],
            "IDC1-0 IDC1-1 IDC3-0|IDC1-2 IDC1-3 IDC3-1|IDC2-0 IDC2-1 IDC2-2 IDC2-3 IDC3-2",
        ),
        (["IDC1-CID-0", "IDC4-CID-0"], "IDC1-0 IDC1-1 IDC1-2 IDC1-3 IDC2-0 IDC2-1 IDC3-0 IDC3-1|IDC2-2 IDC2-3 IDC3-2"),
    ],
)
def test_queues_go_to_members_in_their_room(group: list[str], expected: str) -> None:
    strategy = MachineRoomNearby(room_of_member=before_dash, room_of_broker=before_dash)
    assert with_brokers(shares(strategy, idc(), group)) == expected


def test_rooms_are_told_by_what_is_before_the_at_sign() -> None:
    both = queues(2, "north@a", "south@b")
    assert with_brokers(shares(MachineRoomNearby(), both, ["north@1", "south@1"])) == (
        "north@a0 north@a1|south@b0 south@b1"
    )
    assert with_brokers(
        shares(MachineRoomNearby(AveragelyByCircle()), queues(4, "north@a"), ["north@1", "north@2"])
    ) == ("north@a0 north@a2|north@a1 north@a3")


def test_who_has_no_room_is_near_nothing() -> None:
    every = queues(2, "a", "north@b")
    assert with_brokers(shares(MachineRoomNearby(), every, ["c", "north@c"])) == "a0|a1 north@b0 north@b1"


# ---- By member ----------------------------------------------------------------------------------


@for_each(
    ("consumers", "group", "expected"),
    [
        (["live-1", "live-2"], ["live-1", "live-2", "test"], "0 1 2|3 4|-"),
        (["test"], ["live-1", "live-2", "test"], "-|-|0 1 2 3 4"),
        (["live-1", "live-2"], ["live-2", "test"], "0 1 2 3 4|-"),
        (["live-1", "live-2"], ["test"], "-"),
    ],
)
def test_only_named_clients_read(consumers: list[str], group: list[str], expected: str) -> None:
    assert numbers(shares(Designated(consumers), queues(5), group)) == expected


def test_all_read_when_no_named_client_is_there_if_that_is_wanted() -> None:
    strategy = Designated(["test"], fall_back=True)
    assert numbers(shares(strategy, queues(4), ["live-1", "live-2"])) == "0 1|2 3"
    assert numbers(shares(strategy, queues(4), ["live-1", "live-2", "test"])) == "-|-|0 1 2 3"


def test_named_clients_divide_by_the_inner_strategy() -> None:
    strategy = Designated(["a", "b"], AveragelyByCircle())
    assert numbers(shares(strategy, queues(4), ["a", "b", "c"])) == "0 2|1 3|-"
