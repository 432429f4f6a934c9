"""Changes by administrators, described for the log."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from minimq_broker.state.facts import (
    CommittedOffset,
    Fact,
    GroupDeleted,
    OffsetsCommitted,
    PermissionSet,
    Topic,
    TopicDeleted,
    TopicSet,
)
from minimq_broker.state.state import QueueKey, State
from minimq_common.model import permission_name
from minimq_common.text_units import count_of

#: Offsets that are listed; a topic may have a thousand queues.
_NAMED = 8
_NOTHING = "-"


@dataclass(frozen=True, slots=True)
class AdminChange:
    action: str
    #: "-" for the broker itself.
    name: str
    #: "-" if there was or is no value.
    old: str = _NOTHING
    new: str = _NOTHING


def change_of(state: State, fact: Fact) -> AdminChange | None:
    """Return the change that a fact will make in a state; None if it is everyday work of groups and producers.

    Call it before the fact is applied: the result has the old value.
    """
    match fact:
        case TopicSet(topic):
            known = state.topics.get(topic.name)
            action = "topic created" if known is None else "topic changed"
            return AdminChange(action, topic.name, _settings(known), _settings(topic))
        case TopicDeleted(name):
            return AdminChange("topic deleted", name, _settings(state.topics.get(name)))
        case GroupDeleted(group, topics):
            offsets = len(state.index.queues(group))
            return AdminChange("group deleted", group, ", ".join((f"offsets of {count_of(offsets, 'queue')}", *topics)))
        case PermissionSet(permission):
            before, after = permission_name(state.permission), permission_name(permission)
            return AdminChange("broker permission set", _NOTHING, before, after)
        case OffsetsCommitted(group, offsets, True, published) if not published:
            former = [state.offset(group, QueueKey(item.topic_id, item.queue_id)) for item in offsets]
            later = [item.offset for item in offsets]
            return AdminChange("offsets set", group, _offsets(state, offsets, former), _offsets(state, offsets, later))
        case _:
            return None


def _settings(topic: Topic | None) -> str:
    if topic is None:
        return _NOTHING
    counts = count_of(topic.read_queues, "read queue"), count_of(topic.write_queues, "write queue")
    kinds = [*(["FIFO"] if topic.fifo else []), *sorted(topic.settings)]
    return ", ".join((*counts, permission_name(topic.permission), *kinds))


def _offsets(state: State, items: Sequence[CommittedOffset], offsets: Sequence[int | None]) -> str:
    names = {topic.topic_id: name for name, topic in state.topics.items()}
    parts: list[str] = []
    topic_id = None
    for item, offset in zip(items[:_NAMED], offsets[:_NAMED], strict=True):
        if item.topic_id != topic_id:
            topic_id = item.topic_id
            parts.append(names.get(topic_id, f"#{topic_id}"))
        parts.append(f"{item.queue_id}:{_NOTHING if offset is None else offset}")
    if len(items) > _NAMED:
        parts.append(f"and {len(items) - _NAMED} more")
    return " ".join(parts)
