"""The strategies. All except `Sticky` divide each topic on its own."""

from __future__ import annotations

import functools
import hashlib
import heapq
import itertools
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from minimq.rebalance.strategy import (
    AllocationStrategy,
    Division,
    allocate_everyone,
    name_of,
    names_of,
    sorted_members,
    uses_owners,
)
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue
from minimq_common.names import machine_room_of


class Averagely(Division):
    """The default strategy: contiguous blocks, the same as RocketMQ's.

    It divides each topic on its own. In a group with many topics the first members get the remainder of every topic,
    and if each topic has one queue, the first member gets all of them. `Sticky` divides all topics together.
    """

    name = "averagely"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        size, longer = divmod(len(queues), len(members))
        place = members.index(member)
        start = place * size + min(place, longer)
        return queues[start : start + size + (place < longer)]


class AveragelyByCircle(Division):
    """As even as `Averagely`, but spreads each broker's queues over the members: a slow broker slows all alike."""

    name = "averagely_by_circle"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return queues[members.index(member) :: len(members)]


_DEFAULT_VIRTUAL_NODES = 200


class ConsistentHash(Division):
    """A hash ring: when a member leaves or joins, only its own queues move.

    The price is an uneven division, and with few queues some members may get none. With 100 queues for each of ten
    members, the largest share is about 60 % above the average with 10 virtual nodes, and 20 % with the default of 200.
    Each virtual node costs a hash per member when the members change. With 10, the shares are the same as RocketMQ's.
    `Sticky` moves as few queues and is even.

    Args:
        virtual_nodes: points of each member on the ring. Must be the same on every member.

    Raises:
        InvalidArgument: `virtual_nodes` is not a whole number above 0.
    """

    name = "consistent_hash"

    def __init__(self, virtual_nodes: int = _DEFAULT_VIRTUAL_NODES) -> None:
        if not _is_count(virtual_nodes):
            raise InvalidArgument(f"{self.name}: virtual_nodes must be a whole number above 0, not {virtual_nodes!r}")
        self._virtual_nodes = virtual_nodes
        if virtual_nodes != _DEFAULT_VIRTUAL_NODES:
            self.name = f"{self.name}(virtual_nodes={virtual_nodes})"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        points, owners = _ring(tuple(members), self._virtual_nodes)

        def owner(queue: MessageQueue) -> str:
            return owners[bisect_left(points, _hash(_key(queue))) % len(points)]

        return [queue for queue in queues if owner(queue) == member]


def _is_count(number: object) -> bool:
    return isinstance(number, int) and number > 0


@functools.lru_cache(maxsize=8)  # a group needs the same ring for each topic
def _ring(members: tuple[str, ...], virtual_nodes: int) -> tuple[list[int], list[str]]:
    """Return the points of all members, sorted by hash, and their owners."""
    # If two members hash to the same point, the later name has it, on every member alike.
    owners = {_hash(f"{member}-{node}"): member for member in members for node in range(virtual_nodes)}
    points = sorted(owners)
    return points, [owners[point] for point in points]


def _key(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


class ByConfig(Division):
    """A fixed list of queues for each member, regardless of other members.

    There is no failover: the queues of a member that is gone are not read, nor are queues that are not listed. A listed
    queue that does not exist (yet) is ignored until it does.

    Args:
        queues: the queues of this member. If two members list a queue, the one that was first gets it.

    Raises:
        InvalidArgument: an item is not a queue.
    """

    name = "by_config"

    def __init__(self, queues: Iterable[MessageQueue]) -> None:
        self._queues = frozenset(queues)
        for queue in self._queues:
            if not isinstance(queue, MessageQueue):
                raise InvalidArgument(f"by_config: {queue!r} is not a MessageQueue")

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return self._queues.intersection(queues)


class Designated(Division):
    """Divides the queues among the named clients that are alive; all other members get none.

    If the clients of a service are named, a test machine that joins their group gets nothing. If the test machine is
    named, only it reads. All members must name the same clients.

    If none of the named clients is alive, no member reads, so that no message reaches a machine that should not get it.
    With `fall_back` all members read in this case.

    Args:
        consumers: client ids of the members that read.
        inner: divides the queues among them; `Averagely` by default.
        fall_back: whether all members read if none of the named clients is alive.

    Raises:
        InvalidArgument: `consumers` is empty or has an empty name.
    """

    def __init__(
        self, consumers: Iterable[str], inner: AllocationStrategy | None = None, fall_back: bool = False
    ) -> None:
        self._consumers = names_of(consumers, "designated: consumers")
        self._inner = inner or Averagely()
        self._fall_back = bool(fall_back)
        parts = [", ".join(self._consumers)]
        parts += [name_of(inner)] if inner else []
        parts += ["fall_back"] if fall_back else []
        self.name = f"designated({'; '.join(parts)})"
        self.uses_owners = uses_owners(self._inner)

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> dict[str, list[MessageQueue]]:
        """Return the queues of every member; see `OwnerAwareStrategy.allocate_all`."""
        everybody = sorted_members(members)
        readers = self._readers(everybody)
        shares = allocate_everyone(self._inner, group, queues, readers, owners) if readers else {}
        return {member: shares.get(member, []) for member in everybody}

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        readers = self._readers(members)
        return self._inner.allocate(group, member, queues, readers) if member in readers else []

    def _readers(self, members: list[str]) -> list[str]:
        named = [member for member in members if member in self._consumers]
        return members if self._fall_back and not named else named


class MachineRoom(Division):
    """Divides the queues of some rooms among all members, as RocketMQ does; queues of other rooms are not read.

    Each member gets a block of equal size, and the remainder at the end goes one by one to the first members. The name
    of a broker has its room, "room@broker".

    Args:
        rooms: names of the rooms, the same on every member.

    Raises:
        InvalidArgument: `rooms` is empty or has an empty name.
    """

    def __init__(self, rooms: Iterable[str]) -> None:
        self._rooms = names_of(rooms, "machine_room: rooms")
        self.name = f"machine_room({', '.join(self._rooms)})"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        kept = [queue for queue in queues if machine_room_of(queue.broker_name) in self._rooms]
        size = len(kept) // len(members)
        place = members.index(member)
        left_over = kept[size * len(members) :]
        return kept[place * size : (place + 1) * size] + left_over[place : place + 1]


#: Returns the room of a member or a broker by its name; "" for none.
RoomOf = Callable[[str], str]


class MachineRoomNearby(Division):
    """Keeps reads within a room: its queues are divided among its own members.

    The queues of a room without a live member are divided among all members, room by room. So are the queues of brokers
    without a room. A member without a room only gets a share of these.

    By default the room is what precedes "@" in a broker name or a client id. Generated client ids have none: set each
    client's id, such as "north@reader-1".

    Args:
        inner: divides the queues among the members that may have them; `Averagely` by default.
        room_of_member: returns the room of a client id. Must be the same on every member, as must `room_of_broker`;
            members cannot check that, as it is not part of the strategy's name.
        room_of_broker: returns the room of a broker name.
    """

    def __init__(
        self,
        inner: AllocationStrategy | None = None,
        room_of_member: RoomOf = machine_room_of,
        room_of_broker: RoomOf = machine_room_of,
    ) -> None:
        self._inner = inner or Averagely()
        self._room_of_member = room_of_member
        self._room_of_broker = room_of_broker
        self.name = f"machine_room_nearby({name_of(inner)})" if inner else "machine_room_nearby"
        self.uses_owners = uses_owners(self._inner)

    def allocate_all(
        self, group: str, queues: Sequence[MessageQueue], members: Sequence[str], owners: Mapping[MessageQueue, str]
    ) -> dict[str, list[MessageQueue]]:
        """Return the queues of every member; see `OwnerAwareStrategy.allocate_all`."""
        everybody = sorted_members(members)
        found: dict[str, list[MessageQueue]] = {member: [] for member in everybody}
        for items, readers in self._rooms(sorted(set(queues)), everybody):
            for member, share in allocate_everyone(self._inner, group, items, readers, owners).items():
                found[member] += share
        return {member: sorted(share) for member, share in found.items()}

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return [
            queue
            for items, readers in self._rooms(queues, members)
            if member in readers
            for queue in self._inner.allocate(group, member, items, readers)
        ]

    def _rooms(
        self, queues: Sequence[MessageQueue], members: list[str]
    ) -> Iterable[tuple[list[MessageQueue], list[str]]]:
        readers: defaultdict[str, list[str]] = defaultdict(list)
        for member in members:
            readers[self._room_of_member(member)].append(member)
        items: defaultdict[str, list[MessageQueue]] = defaultdict(list)
        for queue in queues:
            items[self._room_of_broker(queue.broker_name)].append(queue)
        for room in sorted(items):
            yield items[room], (readers.get(room) or members) if room else members


class MetaQ(Averagely):
    """MetaQ's default, which is `Averagely`: of m members the first n mod m get one more of the n queues."""

    name = "metaq"


class MetaQConsistentHash(ConsistentHash):
    """MetaQ's consistent hash, on the ring of `ConsistentHash`.

    The shares differ from those of MetaQ's clients, since MetaQ's partitions have other names, hence other hashes.
    """

    name = "metaq_consistent_hash"


class Sticky(Division):
    """Balances all topics together to a difference of at most one queue, and moves as few queues as possible.

    In comparison, `Averagely` divides each topic on its own, which favours the first members when there are many
    topics, and moves most queues when a member joins or leaves.

    It uses the current owners of the queues, which must be the same on every member; without them it still divides
    evenly. Where it has a choice, it spreads the queues of each topic over the members.
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
        self.room = 0  # how many more queues it may get
        self._by_topic: defaultdict[str, list[MessageQueue]] = defaultdict(list)

    def queues(self) -> list[MessageQueue]:
        return sorted(itertools.chain.from_iterable(self._by_topic.values()))

    def count_of(self, topic: str) -> int:
        return len(self._by_topic.get(topic, ()))

    def add(self, queue: MessageQueue) -> None:
        self._by_topic[queue.topic].append(queue)
        self.count += 1

    def shrink(self, size: int, fair: Mapping[str, float]) -> list[MessageQueue]:
        """Remove and return the surplus, always from the topic that is furthest above its fair share."""
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
    """Return the number of queues for each member.

    Members that own more than `size` get the remainder first, since each of them then moves one queue less. Ties are
    resolved by name.
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


#: Every strategy by its name for users; the table of docs/consuming.md describes their arguments.
STRATEGIES: Mapping[str, Callable[..., AllocationStrategy]] = {
    "averagely": Averagely,
    "averagely_by_circle": AveragelyByCircle,
    "by_config": ByConfig,
    "consistent_hash": ConsistentHash,
    "designated": Designated,
    "machine_room": MachineRoom,
    "machine_room_nearby": MachineRoomNearby,
    "metaq": MetaQ,
    "metaq_consistent_hash": MetaQConsistentHash,
    "sticky": Sticky,
}
