"""The groups that read a topic, in sentences about what an action does to them."""

from __future__ import annotations

from minimq.administration.group_descriptions import GroupDescription
from minimq_console.page import Visit
from minimq_console.texts import listing


def reading_groups(visit: Visit, topic: str) -> tuple[GroupDescription, ...] | None:
    """Return the groups that read a topic, as the last look found them; None if that is not known."""
    activity = visit.sample().activity
    if activity is None:
        return None
    groups = (each.group for each in activity.groups)
    return tuple(group for group in groups if any(queue.queue.topic == topic for queue in group.queues))


def say_readers(visit: Visit, topic: str, effect: str) -> str:
    """Return a sentence about the groups that read a topic.

    Args:
        visit: looks at the cluster.
        topic: its name.
        effect: what becomes of them, such as "lose what they have not read".
    """
    groups = reading_groups(visit, topic)
    if groups is None:
        return "Which groups read it is not known now."
    if not groups:
        return "No group reads it, as far as you may see."
    unread = sum(queue.lag for group in groups for queue in group.queues if queue.queue.topic == topic)
    noun = "Group" if len(groups) == 1 else "Groups"
    return f"{noun} {listing([group.group for group in groups])}, with {unread:,} unread messages of it: {effect}."
