"""Which member reads which queue."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minimq.rebalance import allocation
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


def queues(count: int, *brokers: str) -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for broker in brokers or ("a",) for number in range(count)]


def members(count: int) -> list[str]:
    return [f"c{number:02d}" for number in range(count)]


def shares(every: list[MessageQueue], group: list[str]) -> list[list[MessageQueue]]:
    return [allocation("averagely").allocate("g", member, every, group) for member in group]


@pytest.mark.parametrize(
    ("count", "size", "expected"),
    [
        (8, 3, "012 345 67"),
        (8, 4, "01 23 45 67"),
        (10, 4, "012 345 67 89"),
        (7, 3, "012 34 56"),
        (5, 2, "012 34"),
        (3, 5, "0 1 2 - -"),
        (1, 3, "0 - -"),
        (16, 5, "0123 456 789 abc def"),
        (9, 2, "01234 5678"),
        (4, 4, "0 1 2 3"),
        (1, 1, "0"),
    ],
)
def test_blocks_of_equal_size(count: int, size: int, expected: str) -> None:
    found = shares(queues(count), members(size))
    assert " ".join("".join(f"{queue.queue_id:x}" for queue in share) or "-" for share in found) == expected


def test_blocks_run_over_brokers() -> None:
    found = shares(queues(4, "a", "b"), members(3))
    assert [[f"{queue.broker_name}{queue.queue_id}" for queue in share] for share in found] == [
        ["a0", "a1", "a2"],
        ["a3", "b0", "b1"],
        ["b2", "b3"],
    ]


def test_who_is_not_in_the_list_gets_nothing() -> None:
    assert allocation("averagely").allocate("g", "stranger", queues(4), members(2)) == []


@pytest.mark.parametrize(
    ("member", "every", "group"), [("", queues(2), members(1)), ("c00", [], members(1)), ("c00", queues(2), [])]
)
def test_nothing_to_divide_is_wrong_usage(member: str, every: list[MessageQueue], group: list[str]) -> None:
    with pytest.raises(InvalidArgument):
        allocation("averagely").allocate("g", member, every, group)


@given(st.integers(1, 60), st.integers(1, 20))
def test_each_queue_goes_to_one_member_and_shares_are_even(count: int, size: int) -> None:
    every = queues(count)
    found = shares(every, members(size))

    assert [queue for share in found for queue in share] == every
    assert max(map(len, found)) - min(map(len, found)) <= 1


def test_an_unknown_strategy_lists_those_there_are() -> None:
    with pytest.raises(InvalidArgument, match=r"there are .*averagely"):
        allocation("nicely")
