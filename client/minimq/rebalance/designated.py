"""Only some clients read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from minimq.rebalance.averagely import Averagely
from minimq.rebalance.group_allocation import allocate_everyone, name_of, uses_owners
from minimq.rebalance.strategy import AllocationStrategy, Division, names_of, sorted_members
from minimq_common.model import MessageQueue


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
