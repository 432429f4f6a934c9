"""Queues go to members in their own machine room, if there are any."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from minimq.rebalance.averagely import Averagely
from minimq.rebalance.group_allocation import allocate_everyone, name_of, uses_owners
from minimq.rebalance.strategy import AllocationStrategy, Division, sorted_members
from minimq_common.model import MessageQueue
from minimq_common.names import machine_room_of

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
