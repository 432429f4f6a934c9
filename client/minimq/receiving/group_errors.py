"""The errors of a group that its user hears: brokers that refuse a member, and topics that were deleted."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from minimq.connection.client import RouteCache
from minimq.connection.retry_schedule import after_waiting
from minimq.transport.client_log import client_logger
from minimq_common.errors import AccessDenied, GroupConflict, MiniMQError, NotAuthenticated, SystemBusy, TopicNotFound
from minimq_common.names import RETRY_PREFIX
from minimq_common.outage_log import OutageLog

log = client_logger(__name__)

#: Name servers hear of a deletion within this time, in seconds; later the answer of a broker counts no more.
_SUSPICION_S = 10.0
#: Errors that users mend.
_REPORTED_AT_ONCE = (GroupConflict, AccessDenied, NotAuthenticated)
#: A topic that is made anew so quickly, in seconds, is gone on with silently.
_RECREATION_GRACE_S = 0.5


class Refusals:
    """Why brokers do not have a member in its group. Used by the member's task alone.

    The user hears at once of what users mend. He hears of a broker without room when the time for the start is over and
    no broker has taken the member.
    """

    def __init__(
        self, group: str, tell: Callable[[MiniMQError | None], None], start_timeout_s: float, now: float
    ) -> None:
        self._group = group
        self._tell = tell
        self._start_timeout_s = start_timeout_s
        self._start_ends_at = now + start_timeout_s
        #: By broker, why it does not have the member in the group.
        self._reasons: dict[str, MiniMQError] = {}
        #: Brokers that have the member in their list.
        self._taken_by: set[str] = set()
        #: True once any broker had. Read by other threads.
        self.was_taken = False
        self._reported: MiniMQError | None = None
        self._outages: defaultdict[str, OutageLog] = defaultdict(partial(OutageLog, log))

    def refused(self, name: str, error: MiniMQError, now: float) -> None:
        """A broker does not take the member, or what it asks for."""
        if isinstance(error, _REPORTED_AT_ONCE) or name not in self._taken_by:
            self._reasons[name] = error
        if not isinstance(error, _REPORTED_AT_ONCE):
            level = logging.INFO if error.retriable and not isinstance(error, SystemBusy) else logging.WARNING
            message = "group: refused group=%s broker=%s reason=%s"
            self._outages[name].failed(message, self._group, name, error, cause=error, level=level)
        self.look(now)

    def accepted(self, name: str, now: float) -> None:
        """A broker has the member in its list."""
        self.was_taken = True
        self._taken_by.add(name)
        if self._reasons.pop(name, None) is not None:
            self.served(name)
        self.look(now)

    def served(self, name: str) -> None:
        """A broker gives what it is asked for."""
        if name in self._outages:
            self._outages[name].worked("group: not refused any more group=%s broker=%s", self._group, name)

    def parted(self, name: str) -> None:
        """The session with a broker has ended."""
        self._taken_by.discard(name)

    def look(self, now: float) -> None:
        """Report the error for the user if it is another one than before."""
        error, reported = self._to_report(now), self._reported
        if error is reported or (
            error and reported and (error.code, error.message) == (reported.code, reported.message)
        ):
            return
        self._reported = error
        if isinstance(error, SystemBusy):
            error = after_waiting(error, self._start_timeout_s)
        self._tell(error)

    def _to_report(self, now: float) -> MiniMQError | None:
        for error in self._reasons.values():
            if isinstance(error, _REPORTED_AT_ONCE):
                return error
        if self.was_taken or now < self._start_ends_at:
            return None
        return next((error for error in self._reasons.values() if isinstance(error, SystemBusy)), None)


class DeletedTopics:
    """Finds out which topics were deleted, and tells the user once. Belongs to one thread.

    A broker that does not have a topic any more may be one of several that carried it. The topic was deleted if name
    servers know no other one, not even one that is away.
    """

    def __init__(self, routes: RouteCache, reader: str, tell: Callable[[MiniMQError], None]) -> None:
        self._routes = routes
        self._reader = reader
        self._tell = tell
        #: When a broker said so, by topic.
        self._suspected_at: dict[str, float] = {}
        #: Since when name servers say so, by topic; infinite once the user's error was raised.
        self._deleted_since: dict[str, float] = {}

    def suspect(self, topic: str, now: float) -> None:
        """Note that a broker does not have a topic any more. The retry topic is the group's own affair."""
        if not topic.startswith(RETRY_PREFIX):
            self._suspected_at[topic] = now

    def may_be(self, topic: str) -> bool:
        """Return whether a topic was deleted, or a broker has lately said that it does not have it."""
        return topic in self._suspected_at or self._routes.is_deleted(topic)

    def look(self, now: float) -> None:
        """Tell of topics that were deleted."""
        for topic, suspected_at in list(self._suspected_at.items()):
            if self._routes.is_deleted(topic):
                if now - self._deleted_since.setdefault(topic, now) >= _RECREATION_GRACE_S:
                    self._deleted_since[topic] = math.inf
                    reason = f"topic {topic} was deleted while {self._reader} read it"
                    remedy = f"reading goes on when the topic is made anew: `minimq topic create {topic}`"
                    self._tell(TopicNotFound(f"{reason}; {remedy}"))
            elif topic in self._deleted_since or now - suspected_at > _SUSPICION_S:
                self._deleted_since.pop(topic, None)
                del self._suspected_at[topic]
