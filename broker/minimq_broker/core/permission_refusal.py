"""The error for what a permission does not allow."""

from __future__ import annotations

from minimq_broker.core.facts import Topic
from minimq_common.errors import NoPermission
from minimq_common.model import Permission


def not_allowed(topic: Topic, of_broker: int, wanted: Permission) -> NoPermission:
    """Return why a topic cannot be read, or written: by its own permission, or by that of the broker."""
    what = "writable" if wanted == Permission.WRITE else "readable"
    cause = "" if topic.permission & wanted else ": its own permission does not allow it"
    if not of_broker & wanted:
        cause = f": the whole broker is not {what}, until minimq cluster permission allows it again"
    return NoPermission(f"topic {topic.name!r} is not {what} on this broker{cause}")
