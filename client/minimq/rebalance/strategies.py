"""The strategies: all but `Sticky` divide each topic by itself."""

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
    """The default strategy: blocks, the same ones as RocketMQ's.

    It divides each topic by itself. In a group with many topics the first members get the one more of each of them,
    and with topics of one queue the first member gets all: `Sticky` divides all topics together.
    """

    name = "averagely"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        size, longer = divmod(len(queues), len(members))
        place = members.index(member)
        start = place * size + min(place, longer)
        return queues[start : start + size + (place < longer)]


class AveragelyByCircle(Division):
    """As even as `Averagely`, but each member has queues of many brokers, so that a slow broker slows all alike."""

    name = "averagely_by_circle"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return queues[members.index(member) :: len(members)]


_DEFAULT_VIRTUAL_NODES = 200


class ConsistentHash(Division):
    """A hash ring: a member that leaves gives up its queues, one that joins takes some, and no other queue moves.

    The price is an uneven division, and with few queues some members may get none. Where there are 100 queues for each
    of ten members, the member with most has about 60 % more than the average with 10 virtual nodes, 20 % with the
    default of 200. Each virtual node costs a hash per member when the members change. With 10 the shares are those that
    RocketMQ makes. `Sticky` moves as little and is even.

    Args:
        virtual_nodes: points on the ring per member, the same number on every member.

    Raises:
        InvalidArgument: it is not a whole number above 0.
    """

    name = "consistent_hash"

    def __init__(self, virtual_nodes: int = _DEFAULT_VIRTUAL_NODES) -> None:
        if not _is_count(virtual_nodes):
            raise InvalidArgument(f"{self.name}: virtual_nodes must be a whole number above 0, not {virtual_nodes!r}")
        self._virtual_nodes = virtual_nodes
        if virtual_nodes != _DEFAULT_VIRTUAL_NODES:
            self.name = f"{self.name}(virtual_nodes={virtual_nodes})"

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        ring = _Ring.of(tuple(members), self._virtual_nodes)
        return [queue for queue in queues if ring.owner(_hash(_key(queue))) == member]


def _is_count(number: object) -> bool:
    return isinstance(number, int) and number > 0


class _Ring:
    """The points of all members, sorted by hash."""

    def __init__(self, members: tuple[str, ...], virtual_nodes: int) -> None:
        # Two members seldom meet on one point. The later name then has it, on every member alike.
        owners = {_hash(f"{member}-{node}"): member for member in members for node in range(virtual_nodes)}
        self._points = sorted(owners)
        self._owners = [owners[point] for point in self._points]

    @staticmethod
    @functools.lru_cache(maxsize=8)  # a group asks for the same ring once per topic
    def of(members: tuple[str, ...], virtual_nodes: int) -> _Ring:
        return _Ring(members, virtual_nodes)

    def owner(self, point: int) -> str:
        """Return whose point is the next one at or after this, beginning anew behind the last."""
        return self._owners[bisect_left(self._points, point) % len(self._points)]


def _key(queue: MessageQueue) -> str:
    return f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.md5(text.encode(), usedforsecurity=False).digest()[:4], "big")


class ByConfig(Division):
    """A fixed list of queues for each member, whatever other members there are.

    Nobody steps in for a member that is gone: its queues wait. A queue that is written down for nobody is read by
    nobody, one that is not (yet) in the topic is left out until it is.

    Args:
        queues: the queues of this one member; or those of all by client id, the same on every member. In the first
            form the members cannot be compared: two that name the same queue both ask for it, and the one that was
            first has it.

    Raises:
        InvalidArgument: something else than a queue is listed, or one queue for two members.
    """

    def __init__(self, queues: Sequence[MessageQueue] | Mapping[str, Sequence[MessageQueue]]) -> None:
        self.name = "by_config"
        self._own: frozenset[MessageQueue] = frozenset()
        self._by_member: dict[str, frozenset[MessageQueue]] | None = None
        if isinstance(queues, Mapping):
            self._by_member = {member: _checked(items) for member, items in queues.items()}
            _check_disjoint(self._by_member)
            self.name = f"by_config({_digest(self._by_member)})"
        else:
            self._own = _checked(queues)

    def _share(self, group: str, member: str, queues: list[MessageQueue], members: list[str]) -> Iterable[MessageQueue]:
        return (self._own if self._by_member is None else self._by_member.get(member, self._own)).intersection(queues)


def _checked(queues: Iterable[MessageQueue]) -> frozenset[MessageQueue]:
    found = list(queues)
    for queue in found:
        if not isinstance(queue, MessageQueue):
            raise InvalidArgument(f"by_config: {queue!r} is not a MessageQueue")
    return frozenset(found)


def _check_disjoint(by_member: Mapping[str, frozenset[MessageQueue]]) -> None:
    taken: dict[MessageQueue, str] = {}
    for member, queues in sorted(by_member.items()):
        for queue in sorted(queues):
            if queue in taken:
                raise InvalidArgument(f"by_config: {queue} is given to {taken[queue]!r} and to {member!r}")
            taken[queue] = member


def _digest(by_member: Mapping[str, frozenset[MessageQueue]]) -> str:
    told = [(member, [str(queue) for queue in sorted(queues)]) for member, queues in sorted(by_member.items())]
    return hashlib.sha256(repr(told).encode()).hexdigest()[:12]


class Designated(Division):
    """The named clients divide the queues among those of them that are alive; all other members get none.

    A test machine that joins the group of a running service gets nothing when the service's clients are named; when the
    test machine is named, it alone reads. All members must name the same clients.

    When none of the named is alive, nobody reads and the queues wait, so that no message gets to a machine that was not
    to have it. With `fall_back` all members read meanwhile.

    Args:
        consumers: client ids of the members that read.
        inner: how the queues are divided among them; `Averagely` unless given.
        fall_back: whether all members read when none of the named is alive.

    Raises:
        InvalidArgument: nobody is named, or an empty name.
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
    """The queues of some rooms are divided among all members, the same way as RocketMQ does; others are left alone.

    Of the queues that are kept, each member gets a block of equal size, and what is left at the end goes one by one to
    the first members. A broker tells its room by its name, "room@broker".

    Args:
        rooms: names of the rooms, the same on every member.

    Raises:
        InvalidArgument: there is no room, or an empty name.
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


#: Tells the room of a member or of a broker from its name; "" for none.
RoomOf = Callable[[str], str]


class MachineRoomNearby(Division):
    """Reads stay within a room: its queues are divided among its own members.

    The queues of a room where no member is alive are divided among all members, each such room by itself. So are the
    queues of brokers that have no room. A member without a room is near nothing and takes part in these alone.

    By default "room@" before the rest of the name tells the room, of a broker as of a client. Client ids that are made
    up have none: give each client its own, such as "north@reader-1".

    Args:
        inner: how the queues are divided among the members that may have them; `Averagely` unless given.
        room_of_member: returns the room of a client id. It is not part of the strategy's name and must be the same
            on every member, as must `room_of_broker`.
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
    """MetaQ's default: of n queues and m members the first n mod m get one more, members beyond n get none.

    That is what `Averagely` does.
    """

    name = "metaq"


class MetaQConsistentHash(ConsistentHash):
    """MetaQ's consistent hash, on the ring of `ConsistentHash`.

    It stands for the way of dividing, not for the same shares as MetaQ's clients get: MetaQ's partitions have other
    names, hence other hashes.
    """

    name = "metaq_consistent_hash"


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
        self.room = 0  # how many more fit
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
