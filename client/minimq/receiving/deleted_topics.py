"""Topics that were deleted while a group read them."""

from __future__ import annotations

import math
from collections.abc import Callable

from minimq.routes.routing import RouteCache
from minimq_common.errors import MiniMQError, TopicNotFound
from minimq_common.names import RETRY_PREFIX

#: Name servers hear of a deletion within this time, in seconds; later the answer of a broker counts no more.
_HEARD_S = 10.0
#: A topic that is made anew so quickly, in seconds, is gone on with silently.
_ANEW_S = 0.5


class DeletedTopics:
    """Finds out which topics were deleted, and tells the user once. Belongs to the thread of the member.

    A broker that does not have a topic any more may be one of several that carried it. The topic was deleted if name
    servers know no other one, not even one that is away.

    Args:
        routes: where topics are.
        group: the group that reads them.
        tell: gets the error for the user.
    """

    def __init__(self, routes: RouteCache, group: str, tell: Callable[[MiniMQError], None]) -> None:
        self._routes = routes
        self._group = group
        self._tell = tell
        #: When a broker said so, by topic.
        self._suspected_at: dict[str, float] = {}
        #: Since when name servers say so, by topic; infinite once the user was told.
        self._deleted_since: dict[str, float] = {}

    def suspect(self, topic: str, now: float) -> None:
        """Note that a broker does not have a topic any more. The retry topic is the group's own affair."""
        if not topic.startswith(RETRY_PREFIX):
            self._suspected_at[topic] = now

    def look(self, now: float) -> None:
        """Tell of topics that were deleted."""
        for topic, suspected_at in list(self._suspected_at.items()):
            if self._routes.is_deleted(topic):
                if now - self._deleted_since.setdefault(topic, now) >= _ANEW_S:
                    self._deleted_since[topic] = math.inf
                    reason = f"topic {topic} was deleted while group {self._group!r} read it"
                    remedy = f"the group goes on when the topic is made anew: `minimq topic create {topic}`"
                    self._tell(TopicNotFound(f"{reason}; {remedy}"))
            elif topic in self._deleted_since or now - suspected_at > _HEARD_S:
                self._deleted_since.pop(topic, None)
                del self._suspected_at[topic]
