"""Queues and members for tests of allocation strategies, and shares written short."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from hypothesis import strategies as st

from minimq.rebalance import AllocationStrategy
from minimq_common.model import MessageQueue


def queues(count: int, *brokers: str, topic: str = "t") -> list[MessageQueue]:
    """Return so many queues of each broker, of one unless named."""
    return [MessageQueue(topic, broker, number) for broker in brokers or ("a",) for number in range(count)]


def members(count: int) -> list[str]:
    """Return so many client ids, sorted."""
    return [f"c{number:02d}" for number in range(count)]


def shares(
    strategy: AllocationStrategy, every: Sequence[MessageQueue], group: Sequence[str]
) -> list[list[MessageQueue]]:
    """Return what each member gets when each asks by itself, in the order of the members."""
    return [strategy.allocate("g", member, every, group) for member in group]


def numbers(found: Iterable[Iterable[MessageQueue]]) -> str:
    """Return the numbers of the queues of each share: "0 1|2|-"."""
    return "|".join(" ".join(str(queue.queue_id) for queue in share) or "-" for share in found)


def with_brokers(found: Iterable[Iterable[MessageQueue]]) -> str:
    """Return brokers and numbers of the queues of each share: "a0 a1|b0"."""
    return "|".join(" ".join(f"{queue.broker_name}{queue.queue_id}" for queue in share) or "-" for share in found)


def owners_of(found: Mapping[str, Iterable[MessageQueue]]) -> dict[MessageQueue, str]:
    """Return who has which queue."""
    return {queue: member for member, share in found.items() for queue in share}


#: Queues of one to three topics on up to three brokers, some of which stand in a room.
some_queues = st.lists(
    st.builds(
        MessageQueue,
        st.sampled_from(["t0", "t1", "t2"]),
        st.sampled_from(["north@a", "south@b", "c"]),
        st.integers(0, 9),
    ),
    min_size=1,
    max_size=24,
    unique=True,
)
#: One to eight members, some of which stand in a room.
some_members = st.lists(
    st.builds(lambda room, number: f"{room}c{number}", st.sampled_from(["", "north@", "east@"]), st.integers(0, 5)),
    min_size=1,
    max_size=8,
    unique=True,
)
