"""The groups that read a topic, in sentences about what an action does to them."""

from __future__ import annotations

from minimq.administration.group_descriptions import GroupDescription
from minimq_common.words import count_of
from minimq_console.page import Visit
from minimq_console.texts import listing


def reading_groups(visit: Visit, topic: str) -> tuple[GroupDescription, ...] | None:
    """Return the groups that read a topic, as the last look found them; None if that is not known."""
    activity = visit.sample().activity
    if activity is None:
        return None
    groups = (each.group for each in activity.groups)
    return tuple(group for group in groups if any(queue.queue.topic == topic for queue in group.queues))


def say_readers(visit: Visit, topic: str) -> str:
    """Return a sentence about the groups that read a topic."""
    groups = reading_groups(visit, topic)
    if groups is None:
        return "Which groups read it is not known now."
    if not groups:
        return "No group reads it, as far as you may see."
    unread = sum(queue.lag for group in groups for queue in group.queues if queue.queue.topic == topic)
    names, count = listing([group.group for group in groups]), count_of(unread, "unread message")
    if len(groups) == 1:
        return f"Group {names} reads it, and has {count} of it."
    return f"Groups {names} read it, and have {count} of it."
