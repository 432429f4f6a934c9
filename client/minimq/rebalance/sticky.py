"""Even over all topics together, and no queue moves without need."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from minimq.rebalance.strategy import Division, sorted_members
from minimq_common.model import MessageQueue


class Sticky(Division):
    """No member has two queues more than another, over all topics together, and as few queues move as that allows.

    A queue moves when it changes from one member to another; what a member that is gone had, has to move. `Averagely`
    in comparison divides each topic by itself, which favours the first members when there are many topics, and moves
    most queues when a member comes or goes.

    It needs to know who has which queue now, the same on every member. Without that it still divides evenly.
    Where it has a choice, it spreads the queues of each topic over the members.
    """

    name = "sticky"
    uses_owners = True

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> dict[str, list[MessageQueue]]:
        """Return the queues of every member; see `OwnerAwareStrategy.allocate_all`."""
        shares = {member: _Share() for member in sorted_members(members)}
        every = sorted(set(queues))
        free = []
        for queue in every:
            owner = owners.get(queue)
            if owner in shares:
                shares[owner].add(queue)
            else:
                free.append(queue)
        fair = {topic: count / len(shares) for topic, count in Counter(queue.topic for queue in every).items()}
        for member, size in _sizes(shares, len(free)).items():
            free += shares[member].shrink(size, fair)
            shares[member].room = size - shares[member].count
        _hand_out(sorted(free), shares)
        return {member: share.queues() for member, share in shares.items()}

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return self.allocate_all(group, queues, members, {})[member]


class _Share:
    """The queues of one member while they are being divided."""

    def __init__(self) -> None:
        self.count = 0
        self.room = 0  # for so many more
        self._by_topic: defaultdict[str, list[MessageQueue]] = defaultdict(list)

    def queues(self) -> list[MessageQueue]:
        return sorted(itertools.chain.from_iterable(self._by_topic.values()))

    def count_of(self, topic: str) -> int:
        return len(self._by_topic.get(topic, ()))

    def add(self, queue: MessageQueue) -> None:
        self._by_topic[queue.topic].append(queue)
        self.count += 1

    def shrink(self, size: int, fair: Mapping[str, float]) -> list[MessageQueue]:
        """Remove what is too much and return it, always from the topic that is furthest above its fair share."""
        removed = []
        topics = [(fair[topic] - len(queues), topic) for topic, queues in self._by_topic.items()]
        heapq.heapify(topics)
        while self.count > size:
            below, topic = topics[0]
            heapq.heapreplace(topics, (below + 1, topic))
            removed.append(self._by_topic[topic].pop())
            self.count -= 1
        return removed


def _sizes(shares: Mapping[str, _Share], free: int) -> dict[str, int]:
    """Return how many queues each member shall have.

    A member keeps what it has up to its size. So the sizes with one more go to members that have more than the others'
    size, each of whom keeps one queue for it; who of them is all the same, hence by name.
    """
    size, longer = divmod(free + sum(share.count for share in shares.values()), len(shares))
    first = sorted(shares, key=lambda member: (shares[member].count <= size, member))
    return {member: size + (place < longer) for place, member in enumerate(first)}


def _hand_out(free: Sequence[MessageQueue], shares: Mapping[str, _Share]) -> None:
    for queue in free:
        member = min(
            (member for member, share in shares.items() if share.room),
            key=lambda member: (shares[member].count_of(queue.topic), shares[member].count, member),
        )
        shares[member].add(queue)
        shares[member].room -= 1
