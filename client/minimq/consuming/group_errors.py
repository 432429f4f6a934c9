"""Decides when the user gets an error of the group: rejections by brokers, and deleted topics."""

from __future__ import annotations

import logging
import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial

from minimq.connection.client import RouteCache
from minimq.connection.retry_schedule import after_waiting
from minimq_common.errors import AccessDenied, GroupConflict, MinimqError, NotAuthenticated, SystemBusy, TopicNotFound
from minimq_common.retry_log import RetryLog
from minimq_common.wire.channels import TooManyStreams

log = logging.getLogger(__name__)

#: If name servers do not confirm a deletion within this time, other brokers still have the topic.
_SUSPICION_S = 10.0
#: Errors that only the user can fix.
_REPORTED_AT_ONCE = (GroupConflict, AccessDenied, NotAuthenticated)
#: No error for a topic that is recreated within this time.
_RECREATION_GRACE_S = 0.5


class GroupErrors:
    """Decides which rejection of a member the user gets. Used by the member's task alone.

    Errors that only the user can fix are reported at once. While no broker has accepted the member, `TooManyStreams` is
    reported at once, too, and `SystemBusy` when `start_timeout_s` is over.
    """

    def __init__(
        self, group: str, tell: Callable[[MinimqError | None], None], start_timeout_s: float, now: float
    ) -> None:
        self._group = group
        self._tell = tell
        self._start_timeout_s = start_timeout_s
        self._start_ends_at = now + start_timeout_s
        #: By broker, why it rejects the member.
        self._reasons: dict[str, MinimqError] = {}
        #: Brokers that have accepted the member.
        self._accepted_by: set[str] = set()
        #: True once any broker has accepted the member. Read by other threads.
        self.was_taken = False
        self._reported: MinimqError | None = None
        self._outages: defaultdict[str, RetryLog] = defaultdict(partial(RetryLog, log))

    def rejected(self, name: str, error: MinimqError, now: float) -> None:
        if isinstance(error, _REPORTED_AT_ONCE) or name not in self._accepted_by:
            self._reasons[name] = error
        if not isinstance(error, _REPORTED_AT_ONCE):
            level = logging.INFO if error.retriable and not isinstance(error, SystemBusy) else logging.WARNING
            message = "group: rejected group=%s broker=%s reason=%s"
            self._outages[name].failed(message, self._group, name, error, cause=error, level=level)
        self.look(now)

    def accepted(self, name: str, now: float) -> None:
        self.was_taken = True
        self._accepted_by.add(name)
        if self._reasons.pop(name, None) is not None:
            self.served(name)
        self.look(now)

    def served(self, name: str) -> None:
        if name in self._outages:
            self._outages[name].worked("group: not rejected any more group=%s broker=%s", self._group, name)

    def parted(self, name: str) -> None:
        self._accepted_by.discard(name)

    def look(self, now: float) -> None:
        """Report the present error, or its end, if that has changed."""
        error, reported = self._to_report(now), self._reported
        if error is reported or (
            error and reported and (error.code, error.message) == (reported.code, reported.message)
        ):
            return
        self._reported = error
        if isinstance(error, SystemBusy) and not isinstance(error, TooManyStreams):
            error = after_waiting(error, self._start_timeout_s)
        self._tell(error)

    def _to_report(self, now: float) -> MinimqError | None:
        for error in self._reasons.values():
            if isinstance(error, _REPORTED_AT_ONCE):
                return error
        if self.was_taken:
            return None
        reported = TooManyStreams if now < self._start_ends_at else SystemBusy
        return next((error for error in self._reasons.values() if isinstance(error, reported)), None)


class DeletedTopics:
    """Finds out which topics were deleted, and reports each once. Belongs to one thread.

    If a broker no longer has a topic, other brokers may still have it. The topic counts as deleted when name servers
    know no broker with it, not even one that is offline.
    """

    def __init__(self, routes: RouteCache, group: str, tell: Callable[[MinimqError], None]) -> None:
        self._routes = routes
        self._group = group
        self._tell = tell
        #: By topic, when a broker last reported that it does not have it.
        self._suspected_at: dict[str, float] = {}
        #: By topic, since when name servers know no broker with it; infinite once the user has the error.
        self._deleted_since: dict[str, float] = {}

    def suspect(self, topic: str, now: float) -> None:
        """Record that a broker no longer has a topic."""
        self._suspected_at[topic] = now

    def may_be(self, topic: str) -> bool:
        """Return whether a topic was deleted, or a broker has recently reported that it does not have it."""
        return topic in self._suspected_at or self._routes.is_deleted(topic)

    def look(self, now: float) -> None:
        """Report deleted topics. Call it a few times a second."""
        for topic, suspected_at in list(self._suspected_at.items()):
            if self._routes.is_deleted(topic):
                if now - self._deleted_since.setdefault(topic, now) >= _RECREATION_GRACE_S:
                    self._deleted_since[topic] = math.inf
                    reason = f"topic {topic} was deleted while group {self._group!r} read it"
                    remedy = f"reading goes on when the topic is created again: `minimq topic create {topic}`"
                    self._tell(TopicNotFound(f"{reason}; {remedy}"))
            elif topic in self._deleted_since or now - suspected_at > _SUSPICION_S:
                self._deleted_since.pop(topic, None)
                del self._suspected_at[topic]
