"""Even shares over all topics, and the fewest moves that they need."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping

from hypothesis import given, settings
from hypothesis import strategies as st

from minimq.rebalance.strategies import Sticky
from minimq.rebalance.strategy import allocate_everyone
from minimq_common.model import MessageQueue
from support.shares import members, owners_of, queues, some_members, some_queues

Owners = Mapping[MessageQueue, str]


def divide(every: list[MessageQueue], group: list[str], owners: Owners | None = None) -> dict[str, list[MessageQueue]]:
    return allocate_everyone(Sticky(), "g", every, group, owners or {})


def check_even(found: Mapping[str, list[MessageQueue]], every: list[MessageQueue]) -> None:
    assert sorted(queue for share in found.values() for queue in share) == sorted(every)
    lengths = [len(share) for share in found.values()]
    assert max(lengths) - min(lengths) <= 1


def staying(found: Mapping[str, list[MessageQueue]], owners: Owners) -> int:
    return sum(owners.get(queue) == member for member, share in found.items() for queue in share)


def most_that_can_stay(every: list[MessageQueue], group: list[str], owners: Owners) -> int:
    """Try every even division there is."""
    best = 0
    for chosen in itertools.product(group, repeat=len(every)):
        sizes = Counter(chosen)
        if max(sizes.values()) - min(sizes[member] for member in group) <= 1:
            best = max(best, sum(owners.get(queue) == member for queue, member in zip(every, chosen, strict=True)))
    return best


@st.composite
def owned(draw: st.DrawFn, every: list[MessageQueue], group: list[str]) -> dict[MessageQueue, str]:
    """Draw owners: members, clients that are gone, or nobody; and one of a queue that is gone."""
    owners = {queue: draw(st.sampled_from([*group, "gone", None])) for queue in every}
    known = {queue: owner for queue, owner in owners.items() if owner is not None}
    return known | {MessageQueue("t", "former", 0): group[0]}


@given(st.integers(1, 6), st.integers(1, 4), st.data())
@settings(max_examples=60, deadline=None)
def test_no_even_division_lets_more_queues_stay(count: int, size: int, data: st.DataObject) -> None:
    every, group = queues(count), members(size)
    owners = data.draw(owned(every, group))
    found = divide(every, group, owners)
    check_even(found, every)
    assert staying(found, owners) == most_that_can_stay(every, group, owners)


@given(some_queues, some_members, st.data())
@settings(max_examples=100)
def test_members_keep_what_their_size_allows(every: list[MessageQueue], group: list[str], data: st.DataObject) -> None:
    owners = data.draw(owned(every, group))
    found = divide(every, group, owners)
    check_even(found, every)
    # At most what each keeps of the smaller size, and one more for so many as have more and there are larger sizes.
    had = Counter(owners[queue] for queue in every if queue in owners)
    size, longer = divmod(len(every), len(group))
    most = sum(min(had[member], size) for member in group)
    assert staying(found, owners) == most + min(longer, sum(had[member] > size for member in group))
    assert divide(every, group, owners_of(found)) == found  # and then nothing moves any more


@given(some_queues, st.lists(st.integers(0, 5), min_size=1, max_size=8))
@settings(max_examples=60)
def test_members_come_and_go_and_only_their_queues_move(every: list[MessageQueue], changes: list[int]) -> None:
    group = ["c0"]
    found = divide(every, group)
    for number in changes:
        member = f"c{number}"
        before, owners = found, owners_of(found)
        if member not in group:
            group.append(member)
            found = divide(every, group, owners)
            assert staying(found, owners) == len(every) - len(found[member])
            assert len(found[member]) == len(every) // len(group)
        elif len(group) > 1:
            group.remove(member)
            found = divide(every, group, owners)
            assert staying(found, owners) == len(every) - len(before[member])
        check_even(found, every)


def topics(count: int, each: int) -> Iterator[MessageQueue]:
    for number in range(count):
        yield from queues(each, topic=f"t{number:02d}")
