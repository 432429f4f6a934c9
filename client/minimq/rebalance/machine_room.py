"""Only the queues of some machine rooms, in blocks."""

from __future__ import annotations

from collections.abc import Iterable

from minimq.rebalance.strategy import Division, names_of
from minimq_common.model import MessageQueue
from minimq_common.names import machine_room_of


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
