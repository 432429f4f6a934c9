"""Finds groups that have not read all messages of queues that are about to be removed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from minimq_broker.state.state import QueueKey, State
from minimq_common.text_units import count_of, listed

_NAMED_GROUPS = 5
_NAMED_QUEUES = 10


#: First stored offset, and end offset, of a queue.
Bounds = tuple[int, int]


class Lag(NamedTuple):
    """The backlog of one group. `group` None stands for messages that no group has read."""

    group: str | None
    messages: int
    queue_ids: tuple[int, ...]

    def __str__(self) -> str:
        who = f"group {self.group} has not" if self.group is not None else "no group has"
        queues = "queue" if len(self.queue_ids) == 1 else "queues"
        names = listed([*map(str, self.queue_ids)], _NAMED_QUEUES)
        return f"{who} read {count_of(self.messages, 'message')} of {queues} {names}"


def find_lags(state: State, queues: Mapping[QueueKey, Bounds]) -> list[Lag]:
    """Return the backlogs of groups in some queues of one topic, sorted by group."""
    topic_ids = {queue.topic_id for queue in queues}
    groups = {group for topic_id in topic_ids for group in state.index.groups(topic_id)}
    lags = [_lag(state, queues, group) for group in sorted(groups)] or [_lag(state, queues, None)]
    return [lag for lag in lags if lag.messages]


def format_lags(lags: Sequence[Lag], sees: Callable[[str], bool] = lambda _: True) -> str:
    """Describe lags in one sentence, which names only groups that a user sees."""
    seen = [lag for lag in lags if lag.group is None or sees(lag.group)]
    parts = [*map(str, seen[:_NAMED_GROUPS])]
    if hidden := len(lags) - len(seen):
        have = "has" if hidden == 1 else "have"
        parts.append(f"{count_of(hidden, 'group')} that you may not see {have} not read all messages")
    if len(seen) > _NAMED_GROUPS:
        parts.append(f"and {len(seen) - _NAMED_GROUPS} more groups")
    return "; ".join(parts)


def _lag(state: State, queues: Mapping[QueueKey, Bounds], name: str | None) -> Lag:
    unread = {}
    for queue, (first, end) in queues.items():
        reached = 0 if name is None else state.offset(name, queue) or 0
        if end > max(reached, first):
            unread[queue.queue_id] = end - max(reached, first)
    return Lag(name, sum(unread.values()), tuple(sorted(unread)))
