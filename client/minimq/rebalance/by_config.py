"""Queues by a fixed list."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence

from minimq.rebalance.strategy import Division
from minimq_common.errors import InvalidArgument
from minimq_common.model import MessageQueue


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
