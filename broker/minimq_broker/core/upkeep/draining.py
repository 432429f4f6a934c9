"""Groups that still have messages to read in queues that are about to go out of sight."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from minimq_broker.core.state import QueueKey, State
from minimq_common.words import count_of

_NAMED_GROUPS = 5
_NAMED_RANGES = 10


#: The first stored offset of a queue, and the one that its next message will get.
Bounds = tuple[int, int]


class Lag(NamedTuple):
    """The backlog of one group: how many messages, of which queues. No group stands for none at all."""

    group: str | None
    messages: int
    queue_ids: tuple[int, ...]

    def __str__(self) -> str:
        who = f"group {self.group} has not" if self.group is not None else "no group has"
        return f"{who} read {count_of(self.messages, 'message')} of {self._where()}"

    def _where(self) -> str:
        ranges: list[list[int]] = []
        for queue_id in self.queue_ids:
            if ranges and queue_id == ranges[-1][1] + 1:
                ranges[-1][1] = queue_id
            else:
                ranges.append([queue_id, queue_id])
        names = [str(first) if first == last else f"{first}-{last}" for first, last in ranges[:_NAMED_RANGES]]
        more = ", ..." if len(ranges) > _NAMED_RANGES else ""
        return f"{'queue' if len(self.queue_ids) == 1 else 'queues'} {', '.join(names)}{more}"


def find_lags(state: State, queues: Mapping[QueueKey, Bounds], ignored: Collection[str] = ()) -> list[Lag]:
    """Return who has not read all of some queues of one topic, sorted by group.

    A group counts when it has committed an offset in the topic or its start there is decided; in a queue without an
    offset it begins at the first message. Without any group that counts, the messages that nobody has read are told.
    """
    topic_ids = {queue.topic_id for queue in queues}
    groups = {group for topic_id in topic_ids for group in state.index.groups(topic_id)}
    counting = sorted(groups.difference(ignored))
    lags = [_lag(state, queues, group, [group]) for group in counting] or [_lag(state, queues, None, groups)]
    return [lag for lag in lags if lag.messages]


def say_lags(lags: Sequence[Lag]) -> str:
    """Return the lags as one sentence."""
    more = f"; and {len(lags) - _NAMED_GROUPS} more groups" if len(lags) > _NAMED_GROUPS else ""
    return "; ".join(map(str, lags[:_NAMED_GROUPS])) + more


def _lag(state: State, queues: Mapping[QueueKey, Bounds], name: str | None, readers: Iterable[str]) -> Lag:
    unread = {}
    for queue, (first, end) in queues.items():
        reached = max((state.offset(group, queue) or 0 for group in readers), default=0)
        if end > max(reached, first):
            unread[queue.queue_id] = end - max(reached, first)
    return Lag(name, sum(unread.values()), tuple(sorted(unread)))
